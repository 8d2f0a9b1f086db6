"""What a scripted user makes of the instructions that a simulated one would get: the same, said of oneself.

The instructions speak to the user ("You want to return your kettle"); the scripted user has one line to say it all. The
wording is changed by rule, never shortened, so that different instructions stay different.
"""

import re
from collections.abc import Sequence

REPLIES: Sequence[str] = (
    "Yes, please go ahead.",
    "Is everything done as I asked?",
    "Thank you, that is all. ###STOP###",
)
"""What a scripted user says to the confirmation, to the outcome, and at last."""

_WORDS = {
    "you are": "I am",
    "you were": "I was",
    "you're": "I'm",
    "you've": "I've",
    "you'd": "I'd",
    "you'll": "I'll",
    "yourself": "myself",
    "yours": "mine",
    "your": "my",
    "you": "I",
}
_OBJECT = (
    "about|ask|asks|at|charge|for|from|give|gives|help|helps|let|lets|of|offer|offers|refund|tell|tells|to|told|with"
)
_SECOND_PERSON = re.compile(rf"\b(?:(?P<verb>{_OBJECT}) you|(?P<word>{'|'.join(_WORDS)}))\b", re.IGNORECASE)


def first_person(text: str) -> str:
    """The text with "you" for "I", "your" for "my" and so on."""
    return _SECOND_PERSON.sub(_turn, text)


def _turn(match: re.Match[str]) -> str:
    if match["verb"]:
        return f"{match['verb']} me"
    word = match["word"]
    said = _WORDS[word.lower()]
    return said[0].upper() + said[1:] if word[0].isupper() else said

"""Scripted users and perfect agents, for benchmarks whose tasks have only instructions for a
simulated user.

The instructions address the user ("You want to return your kettle"). The scripted user says the
same in the first person, in one message. Fixed rules change the wording and never shorten it, so
different instructions stay different.
"""

import json
import re
from collections.abc import Sequence
from hashlib import sha256

from rollq.env import RESPOND, STOP_MARKER, Action, Json, Task
from rollq.env.customer_service import Case

REPLIES: Sequence[str] = (
    "Yes, please go ahead.",
    "Is everything done as I asked?",
    f"Thank you, that is all. {STOP_MARKER}",
)
"""The scripted user's answers to the agent's question, to its outcome and to its goodbye."""

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
    "about|ask|asks|at|charge|for|from|give|gives|help|helps|let|lets|of|offer|offers|refund|tell|"
    "tells|to|told|with"
)
_SECOND_PERSON = re.compile(
    rf"\b(?:(?P<verb>{_OBJECT}) you|(?P<word>{'|'.join(_WORDS)}))\b", re.IGNORECASE
)


def scripted_case(
    id: str,
    content: Json,
    *,
    instruction: str,
    wishes: str,
    calls: Sequence[Action],
    outputs: Sequence[str],
    closing_tools: frozenset[str],
    assertions: Sequence[str] = (),
) -> Case:
    """The task whose ground truth is `calls` and `outputs`.

    `content` is everything the benchmark has about the task. `wishes` is the part of the
    instruction that the user tells the agent. `closing_tools` end the episode.
    """
    return Case(
        task=Task(
            id=id,
            hash=sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
            instruction=instruction,
            opening=first_person(wishes),
            replies=REPLIES,
            moves=_moves(calls, outputs, closing_tools),
            outputs=tuple(outputs),
            assertions=tuple(assertions),
        ),
        calls=calls,
    )


def first_person(text: str) -> str:
    """The text with "I" for "you", "my" for "your" and so on."""
    return _SECOND_PERSON.sub(_replacement, text)


def _replacement(match: re.Match[str]) -> str:
    if match["verb"]:
        return f"{match['verb']} me"
    word = match["word"]
    replacement = _WORDS[word.lower()]
    return replacement[0].upper() + replacement[1:] if word[0].isupper() else replacement


def _moves(
    calls: Sequence[Action], outputs: Sequence[str], closing_tools: frozenset[str]
) -> Sequence[Action]:
    """The moves of a perfect agent: ask, make the calls, tell the outputs, and end with a goodbye
    or a closing call.
    """
    last = [call for call in calls if call.name in closing_tools]
    done = (
        f"It is all done. For your notes: {'; '.join(outputs)}." if outputs else "It is all done."
    )
    return (
        respond(
            "Let me make sure that I understand you. Shall I go ahead with what you asked for?"
        ),
        *(call for call in calls if call.name not in closing_tools),
        respond(done),
        *(last[:1] or [respond("Yes, it is. Is there anything else I can do for you?")]),
    )


def respond(text: str) -> Action:
    return Action(RESPOND, {"content": text})

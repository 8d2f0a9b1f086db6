"""Plain ASCII, which most text is: cut into words by Python's own regular expressions, and the ids of words remembered.

tiktoken keeps a regular expression with a memory of its own for each of 128 threads. With a hundred threads or more a
text costs twice as much there, and a thousand take 15 MB and more. It still encodes each new word.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

LONG = 10_000
"""Number of characters from which a text is better encoded by tiktoken, which releases the interpreter meanwhile."""
MAX_WORDS = 1 << 14
"""Number of words that are remembered: at most 6 MB."""
LONGEST_WORD = 64
"""Number of characters of the longest word that is remembered."""
_NONE = r"\x80"
"""In place of characters of which there are none in ASCII."""
_CLASSES = {
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "N": "0-9",
    "P": r"""!-#%-*,\-./:;?@\[-\]_{}""",
    "S": r"$+<->\^`|~",
    **dict.fromkeys(("Lt", "Lm", "Lo", "M"), _NONE),
}
"""Unicode's categories in ASCII, as they stand in a set of characters."""
_LEFT_OUT = re.compile(r"&&\[\^[^\x00-\x2c\x2e-\x7f]+\]")
"""Other scripts that are taken out of a set."""
_PART = re.compile(r"\\p\{(\w+)\}|\\.|[\[\]$]", re.DOTALL)


class _Words(dict[str, tuple[int, ...]]):
    """The ids of words."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._encode(word))
        if len(word) <= LONGEST_WORD:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids


def ascii_words(pattern: str, encode: Callable[[str], Sequence[int]]) -> Callable[[str], Sequence[int]]:
    """What encodes as `encode` does, whose words the pattern finds; `encode` itself if Python cannot read the pattern.

    Nothing is proven here: the caller compares it with the tokenizer. Threads may share it.
    """
    try:
        words = re.compile(in_ascii(pattern), re.ASCII)
    except (re.error, KeyError):  # another dialect, or a category that is not known here
        return encode
    if words.groups:
        return encode
    find, ids_of = words.findall, _Words(encode).__getitem__

    def encode_words(text: str) -> Sequence[int]:
        if len(text) > LONG or not text.isascii():
            return encode(text)
        return list(chain.from_iterable(map(ids_of, find(text))))

    return encode_words


def in_ascii(pattern: str) -> str:
    """A pattern that finds the same words in ASCII, in Python's dialect. Raises KeyError for an unknown category."""
    in_set = False

    def translated(part: re.Match[str]) -> str:
        nonlocal in_set
        if category := part[1]:
            return _CLASSES[category] if in_set else f"[{_CLASSES[category]}]"
        if part[0] == "[":
            if in_set:
                raise KeyError(part[0])
            in_set = True
        elif part[0] == "]":
            in_set = False
        elif part[0] == "$" and not in_set:
            return r"\Z"  # Python's $ also stands before a last line end
        return part[0]

    return _PART.sub(translated, _LEFT_OUT.sub("", pattern))

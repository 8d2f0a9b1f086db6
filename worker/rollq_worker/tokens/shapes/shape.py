"""What a chat template writes around contents, as token ids with holes.

The template's own part is encoded once. A hole is encoded with all plain text between the two control tokens around it,
so the ids are those of the whole text, whatever is merged at the edges of the content. It does not know messages.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import re
from array import array
from collections.abc import Callable, Sequence
from itertools import zip_longest

from rollq_worker.tokens.injection_guard import ControlTokens
from rollq_worker.tokens.tokenizer import Tokenizer

_KEPT = 200
"""Characters before a hole that are always encoded with it."""
_CUTS = 20
"""Number of places at which a long text is tried to be cut."""
_WORD_START = re.compile(" [A-Za-z]")
_WORDS = 3
"""Number of words that begin for certain between a cut and a hole."""
_Run = tuple[str | int, ...]
"""Plain text between two control tokens: the template's own words, and the numbers of holes."""


class Shape:
    """A rendered text whose holes can be filled."""

    def __init__(self, controls: ControlTokens, fixed: Sequence[array[int]], runs: Sequence[_Run]) -> None:
        """`fixed`: the ids before, between and after the runs."""
        self._encode = controls.tokenizer.encode_plain
        self._fixed = fixed
        self._runs = runs

    def fill(self, contents: Sequence[str]) -> array[int]:
        """array('I'): the ids with these contents, as the template writes them, in the holes."""
        runs = ("".join([part if isinstance(part, str) else contents[part] for part in run]) for run in self._runs)
        ids = self._fixed[0][:]
        for encoded, after in zip(self._encode(*runs), self._fixed[1:], strict=True):
            ids += encoded
            ids += after
        return ids


def shape_of(
    controls: ControlTokens, rendered: str, holes: Sequence[str], restore: Callable[[str], str]
) -> Shape | None:
    """The shape of a text that was rendered with a mark for each content. `restore` is that of its guard.

    None where a control token beside a hole swallows white space, and with it that of the content.
    """
    numbers = {mark: n for n, mark in enumerate(holes)}
    hole = re.compile(f"({'|'.join(map(re.escape, holes)) or '(?!)'})")
    texts, tokens = controls.cut(rendered)
    fixed, runs = [array("I")], list[_Run]()
    for n, (text, token) in enumerate(zip_longest(texts, tokens)):
        words = hole.split(text)
        if len(words) > 1:
            if n and words[0] == "" and controls.swallows_after(tokens[n - 1]):
                return None
            if token is not None and words[-1] == "" and controls.swallows_before(token):
                return None
            words = [word if word in numbers else restore(word) for word in words]
            settled = _settled(controls.tokenizer, words[0])
            fixed[-1].extend(controls.tokenizer.encode_plain(words[0][:settled])[0])
            words[0] = words[0][settled:]
            runs.append(tuple(numbers.get(word, word) for word in words if word))
            fixed.append(array("I"))
        elif text:
            fixed[-1].extend(controls.tokenizer.encode_plain(restore(text))[0])
        if token is not None:
            fixed[-1].append(token)
    return Shape(controls, fixed, runs)


def _settled(tokenizer: Tokenizer, text: str) -> int:
    """The number of characters at the start of a text whose ids are the same, whatever follows the text.

    A tokenizer begins a new word at a space before a letter. So where a text can be cut without changing its ids, and
    such spaces follow, what is put behind it changes no ids before the cut.
    """
    latest = len(text) - _KEPT
    if latest < _KEPT:
        return 0
    [whole] = tokenizer.encode_plain(text)
    for at in [match.start() for match in re.finditer(r"\s", text[:latest])][: -_CUTS - 1 : -1]:
        if len(_WORD_START.findall(text, at)) >= _WORDS:
            before, after = tokenizer.encode_plain(text[:at], text[at:])
            if before + after == whole:
                return at
    return 0

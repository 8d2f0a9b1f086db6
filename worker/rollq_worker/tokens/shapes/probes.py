"""Finds how a template writes the contents of a shape, by contents that show what templates do to them.

A shape is taken for known only if the slow way gives the same ids for every probe. It does not know messages.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import re
import secrets
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from rollq_worker.tokens.chat_template import LookedFor
from rollq_worker.tokens.injection_guard import ControlTokens, Guard
from rollq_worker.tokens.shapes.shape import Shape, shape_of
from rollq_worker.tokens.shapes.watching import Asked, WatchingGuard
from rollq_worker.tokens.shapes.writing import FORMS, Edges, Writing, any_text, folded

Render = Callable[[Sequence[str], Guard], str]
"""The template's text for these contents, with the guard's marks in it. Raises JobFailure."""

_JSON = '{"role": "user", "id": 7, "list": [1.50, true, null, "a\\\\nb"], "text": "it\'s \\"so\\""}'
_LINES = "Ab  c:\t\"q\" 'r' \\n \\ é中\U0001f642\u2028x\n\n  <b>&amp;</b> http://a.b/c?d=1#e, 100%.\r\n- 2nd LINE"
LONGEST = 20_000
"""Longest content in characters, that a shape takes. A template that cuts long contents shows it at this length."""
_LONG = "\n".join(f"{n} of many lines of a LONG text, {n * 7.5}" for n in range(600))[:LONGEST].ljust(LONGEST, ".")
_CLEAN = (_LINES, _JSON, "7", _LONG, "[]", "Yes.")
"""Contents without white space at the edges."""
_FEW = (_LINES, "7", "{\n}")
"""Contents for a shape that is taken to be as others of its kind."""
_SPACED = ("  x y \n", "\n\nx\n\n", "\t x\u00a0", "\n{}")
_WORD = re.compile(r"\w+")
MAX_WRITINGS = 256
"""Number of ways of writing that are kept."""
_SHORT = 2
"""Longest text without letters that is tried before it is avoided."""


@dataclass(frozen=True, slots=True)
class Known:
    """A shape, and how contents are written into it."""

    shape: Shape
    writing: Writing

    def encode(self, contents: Sequence[str], plain: Sequence[str]) -> array[int] | None:
        """array('I'); None where only the template knows. `plain` are written as they are (ids of calls)."""
        written = []
        for content in contents:
            text = self.writing.write(content) if len(content) <= LONGEST else None
            if text is None:
                return None
            written.append(text)
        return self.shape.fill([*written, *plain])


class Probes:
    """Learns shapes for one tokenizer and template."""

    def __init__(self, controls: ControlTokens, looked_for: LookedFor) -> None:
        self._controls = controls
        self._equal = looked_for.equal
        self._short = sorted(text for text in looked_for.inside if _WORD.fullmatch(text) or len(text) <= _SHORT)
        self._avoided = looked_for.inside.difference(self._short)
        """Texts of which no template is asked what it does to them."""
        self._writings: dict[Hashable, Writing] = {}
        """By kind and what is asked: tools often differ in nothing but their names."""

    def learn(self, kind: Hashable, count: int, ids: Sequence[Sequence[str]], render: Render) -> Known | None:
        """The shape with `count` contents and as many ids of calls as each row of `ids` has; None: there is none.

        `kind`: the roles of the messages. `ids`: several rows of ids that the template takes. Raises what `render`
        raises.
        """
        marks = [f"7{secrets.randbelow(10**20):020}" for _ in range(count)]
        guard = WatchingGuard(self._controls, marks)
        shape = shape_of(self._controls, render([*marks, *ids[0]], guard), [*marks, *ids[0]], guard.restore)
        if shape is None or guard.asked.more:
            return None
        kind = kind, frozenset(guard.asked.inside), frozenset(guard.asked.equal)
        writing = self._writings.get(kind)
        if writing is None or not self._writes(Known(shape, writing), _FEW, count, ids, render):
            writing = self._find(shape, guard.asked, count, ids, render)
        if writing is None:
            return None
        if len(self._writings) >= MAX_WRITINGS:
            self._writings.clear()
        self._writings[kind] = writing
        return Known(shape, writing)

    def _writes(
        self, known: Known, probes: Sequence[str], count: int, ids: Sequence[Sequence[str]], render: Render
    ) -> bool:
        """Whether all contents that can be written come out like that. They take turns in the holes."""
        probes = [text for text in probes if known.writing.write(text) is not None]
        if not probes:
            return False
        for n in range(max(len(probes), len(ids))):
            contents = [probes[(n + hole) % len(probes)] for hole in range(count)]
            row = ids[n % len(ids)]
            guard = Guard(self._controls)
            if known.encode(contents, row) != guard.encode(render([*contents, *row], guard)):
                return False
        return True

    def _find(
        self, shape: Shape, asked: Asked, count: int, ids: Sequence[Sequence[str]], render: Render
    ) -> Writing | None:
        unlike, equal = any_text(self._avoided | asked.inside), folded(self._equal | asked.equal)

        def writes(writing: Writing, probes: Sequence[str]) -> bool:
            return self._writes(Known(shape, writing), probes, count, ids, render)

        for form in FORMS:
            plain = Writing(self._controls, form, Edges.KEPT, unlike, frozenset())
            if not writes(plain, _CLEAN):
                continue
            edges = (replace(plain, edges=edges) for edges in (Edges.KEPT, Edges.STRIPPED))
            found = next((one for one in edges if writes(one, _SPACED)), replace(plain, edges=Edges.UNKNOWN))
            bad = {text for text in self._short if text not in asked.inside and not writes(plain, [_around(text)])}
            return replace(found, unlike=any_text(self._avoided | asked.inside | bad), equal=equal)
        return None


def _around(text: str) -> str:
    """A content with this text at its edges, inside a word and as a word."""
    edge = text.strip() or "x"
    return f"{edge} {text}a{text}b {text} {edge}"

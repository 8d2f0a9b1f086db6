"""The shapes that a renderer has learnt, and whether they still hold.

The first time, a text is rendered. The second time, its shape is learnt. From then on the shape is filled, and the 1st,
4th, 16th, 64th ... result is compared with the rendered text. A shape that differs once is never used again. It does
not know messages.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import logging
import threading
from array import array
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cached_property

from rollq.errors import JobFailure
from rollq_worker.tokens.injection_guard import ControlTokens, Guard
from rollq_worker.tokens.shapes.probes import Known, Probes, Render
from rollq_worker.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MAX_SHAPES = 1024
"""Number of shapes that are kept, those met last for the first time."""
_LEARNT = 2
"""The time at which the shape of a text is learnt."""


class _Entry:
    """What is known of one kind of text."""

    def __init__(self) -> None:
        self.times = 1
        self.known: Known | None = None
        self.filled = 0


class ShapeMemory:
    """Encodes texts of the same shape without rendering them. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, controls: ControlTokens, size: int = MAX_SHAPES) -> None:
        self._tokenizer = tokenizer
        self._controls = controls
        self._size = size
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self._controls, self._tokenizer.looked_for)

    def encode(
        self,
        key: Hashable,
        contents: Sequence[str],
        ids: Sequence[str],
        render: Render,
        *,
        kind: Hashable,
        more_ids: Callable[[], Sequence[Sequence[str]]] = lambda: ((),),
        remember: bool = False,
    ) -> array[int]:
        """array('I'): the ids of `render([*contents, *ids])`.

        `key`: all that shapes the text, but for these. `kind` and `more_ids`: as `Probes.learn` takes them. `remember`:
        see `Guard.encode`. Raises what `render` raises.
        """
        entry = self._entries.get(key)
        if entry is None or entry.times < _LEARNT:
            known = self._learn(key, lambda: self._probes.learn(kind, len(contents), more_ids(), render))
        else:
            known = entry.known
        filled = known.encode(contents, ids) if known is not None else None
        if filled is None or entry is None:
            return self._render(contents, ids, render, remember)
        entry.filled += 1
        if not _is_compared(entry.filled):
            return filled
        rendered = self._render(contents, ids, render, remember)
        if rendered != filled:
            entry.known = None
            log.warning(
                "%s: the template does not write %s as before: such texts are rendered", self._tokenizer.name, kind
            )
        return rendered

    def _learn(self, key: Hashable, learn: Callable[[], Known | None]) -> Known | None:
        """What is known of a text that is met for the first or second time."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = _Entry()
                if len(self._entries) > self._size:
                    del self._entries[next(iter(self._entries))]
                return None
            entry.times += 1
            if entry.times != _LEARNT:
                return None  # another thread learns it
        with suppress(JobFailure):  # a template may refuse what it is only tried with
            entry.known = learn()
        return entry.known

    def _render(self, contents: Sequence[str], ids: Sequence[str], render: Render, remember: bool) -> array[int]:
        guard = Guard(self._controls)
        return guard.encode(render([*contents, *ids], guard), remember)


def _is_compared(n: int) -> bool:
    """Whether n is a power of four."""
    return n & (n - 1) == 0 and n.bit_length() % 2 == 1

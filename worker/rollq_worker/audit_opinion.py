"""A second opinion on the few tokens whose score is off: the same tokens once more, the way they were sampled.

A model in bf16 knows a logit only up to a step (0.0625 for logits from 8 to 16), and which way it is rounded depends on
how it was computed: for many tokens at once (prefill) or for one (decoding). Neither is wrong, and the exact number
lies in between. So a token that is off is computed once more as decoding did it; the nearer score counts. A logprob
that is wrong is wrong by any computation. It knows neither files nor HTTP.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import threading
import uuid
from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Protocol

from rollq_worker.exported import Line
from rollq_worker.scorer import Refused, Scored

DOUBT = 0.01
"""A token off by more, in nats, is computed again."""
AGAIN = 20
"""More doubtful tokens in a trace than one, and one in that many, are no matter of rounding."""
STEPS = 10_000
"""Tokens that an audit walks through one by one, at most: some minutes."""


class Scores(Protocol):
    """What the audit needs of `scorer.Scorer`."""

    longest: int

    def score(self, ids: array[int], start: int, *, likeliest: int = 0) -> Scored: ...

    def next(self, ids: array[int], token: int, *, temperature: float, branch: str) -> float: ...


class SecondOpinion:
    """For one audit, used by several threads."""

    def __init__(self, scorer: Scores) -> None:
        self._scorer = scorer
        self._steps = STEPS
        self._lock = threading.Lock()

    def revise(self, line: Line, first: int, positions: Sequence[int], scored: list[float | None]) -> None:
        """Better `scored`, which begins at the first of the positions, in the trace that begins at `first`."""
        start = positions[0]

        def off(i: int) -> float:
            score = scored[i - start]
            return 0.0 if score is None else abs(line.logprobs[i] - score)

        doubtful = [i for i in positions if off(i) > DOUBT]
        if len(doubtful) > 1 + len(positions) // AGAIN:
            return
        for i in doubtful:
            for opinion in (self._next, self._walk):
                said = opinion(line, first, i)
                if said is not None and abs(line.logprobs[i] - said) < off(i):
                    scored[i - start] = said
                if off(i) <= DOUBT:
                    break

    def _next(self, line: Line, first: int, i: int) -> float | None:
        """Token i as the next one of its prompt."""
        return self._ask(line, first, i, uuid.uuid4().hex)

    def _walk(self, line: Line, first: int, i: int) -> float | None:
        """The same after all sampled tokens before it were read one by one, as they were when they were sampled: then
        even the cache that it is computed from is the one that decoding had."""
        path = list(compress(range(first, i + 1), line.mask[first : i + 1]))
        with self._lock:
            if len(path) > self._steps:
                return None
            self._steps -= len(path)
        branch, said = uuid.uuid4().hex, None
        for k in path:
            said = self._ask(line, first, k, branch)
        return said

    def _ask(self, line: Line, first: int, i: int, branch: str) -> float | None:
        try:
            return self._scorer.next(line.tokens[first:i], line.tokens[i], temperature=line.temperature, branch=branch)
        except Refused:
            return None

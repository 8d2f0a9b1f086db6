"""What the engine is asked for: as many tokens of a turn as there is room for, or the rest of one that was interrupted.

The invariant: every request of a turn is bound by what the turn, the trajectory and the context have left. It keeps
nothing of an episode.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import time
from array import array
from collections.abc import Mapping, Sequence

from rollq.errors import EngineFailure
from rollq.job import Job, Json
from rollq.sampling import GRAMMARS
from rollq.trajectory import Finish, Sampled
from rollq_worker.failures import boundary
from rollq_worker.protocols import Engine, Journal

ABORT_PAUSE_S = 0.05
"""Before an interrupted turn goes on: an engine that aborts everything is about to pause."""


class Sampler:
    """Samples the turns of one job."""

    def __init__(self, job: Job, engine: Engine, journal: Journal, stop_ids: Sequence[int]) -> None:
        self._job = job
        self._engine = engine
        self._journal = journal
        self._ends = turn_ends(job, stop_ids)
        self._starts_over = any(job.sampling.get(name) for name in GRAMMARS)

    def room(self, length: int) -> int:
        """How many tokens fit behind `length` tokens."""
        return min(self._job.budget.max_tokens - length, self._engine.room(length))

    def generate(self, ids: array[int], turn: int, sampled: int) -> Sampled | None:
        """Have the engine go on with a turn of which `sampled` tokens are there; None when no more fit."""
        self._journal.check()
        room = min(self._job.budget.max_new_tokens - sampled, self.room(len(ids)))
        if room <= 0:
            return None
        at = time.time()
        with boundary(EngineFailure, "the engine"):
            got = self._engine.generate(
                ids,
                sampling=self._rest(sampled),
                max_new_tokens=room,
                key=self._job.id,
                check=self._journal.check,
            )
        return Sampled(
            turn=turn,
            ids=got.ids,
            logprobs=got.logprobs,
            versions=got.versions,
            finish=got.finish,
            text=got.text,
            cached_tokens=got.cached_tokens,
            at=at,
            seconds=time.time() - at,
        )

    def whole(self, piece: Sampled) -> bool:
        """Whether a turn ends with this piece, and not for want of room.

        By its last token, whatever `finish` says: the engine tests the length before stop tokens, and an abort may come
        right behind one. A job's own stop string ends a turn without a stop token; the bridge closes it.
        """
        return piece.finish is Finish.STOP or (len(piece.ids) > 0 and piece.ids[-1] in self._ends)

    def keeps(self, piece: Sampled) -> bool:
        """Whether the turn holds this piece.

        The beginning of an interrupted turn is kept, except under a grammar: the engine would begin that anew in the
        middle of the turn.
        """
        interrupted = piece.finish is Finish.ABORT and not self.whole(piece)
        return len(piece.ids) > 0 and not (interrupted and self._starts_over)

    def _rest(self, sampled: int) -> Mapping[str, Json]:
        """The sampling parameters for the rest of a turn."""
        asked = dict(self._job.sampling)
        if asked.get("min_new_tokens"):
            asked["min_new_tokens"] = max(0, asked["min_new_tokens"] - sampled)
        if "sampling_seed" in asked:  # the samples of a group share their job: with one seed they would be one
            asked["sampling_seed"] = (asked["sampling_seed"] + self._job.sample) % 2**63
        return asked


def turn_ends(job: Job, stop_ids: Sequence[int]) -> frozenset[int]:
    """The tokens at which the engine ends a turn: the model's and the job's own, or none."""
    if job.sampling.get("ignore_eos"):
        return frozenset()
    return frozenset(stop_ids) | frozenset(job.sampling.get("stop_token_ids") or ())


def ends_freely(job: Job) -> bool:
    """Whether the engine may end a turn behind any token."""
    return any(job.sampling.get(name) for name in ("stop", "stop_regex", *GRAMMARS))

"""Asks the engine for a turn, or for the rest of an interrupted one.

The invariant: no request asks for more tokens than the turn, the trajectory and the context have
left. It keeps no state of an episode.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import time
from array import array
from collections.abc import Callable, Mapping, Sequence

from rollq.errors import EngineFailure
from rollq.events import Finish, Sampled
from rollq.job import Job, Json
from rollq.sampling import GRAMMARS
from rollq.trajectory_extras import ExpertShape
from rollq_worker.failures import errors_become
from rollq_worker.protocols import Engine, PromptImages, Routing, SampleRequest

ABORT_PAUSE_S = 0.05
"""Seconds before an interrupted turn goes on. An engine that aborts everything is about to pause.
"""


class Sampler:
    """Samples the turns of one job."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        check: Callable[[], None],
        stop_ids: Sequence[int],
        model: str = "",
    ) -> None:
        """`check` raises when nothing more may be sampled. `model`: the one of `Job.models` that
        samples.
        """
        self._job = job
        self._model = model
        self._engine = engine
        self._check = check
        self._end_ids = end_ids(job, stop_ids)
        self._has_grammar = any(job.sampling.get(name) for name in GRAMMARS)
        self._experts = ExpertShape.read(job.routed_experts) if job.routed_experts else None

    def generate(
        self,
        ids: array[int],
        turn: int,
        sampled: int,
        read: int,
        images: PromptImages | None = None,
    ) -> Sampled | None:
        """Samples the rest of a turn that has `sampled` tokens so far; None when it has no room
        left.

        The engine has read the first `read` of the `ids`, so their routed experts are recorded.
        """
        self._check()
        budget = self._job.budget
        most = min(budget.max_new_tokens - sampled, budget.max_tokens - len(ids))
        if most <= 0:
            return None
        at = time.time()
        request = SampleRequest(
            ids=ids,
            sampling=self._parameters(sampled),
            max_new_tokens=most,
            key=self._job.id,
            check=self._check,
            routing=Routing(start=read, shape=self._experts) if self._experts else None,
            images=images,
            model=self._model,
        )
        with errors_become(EngineFailure, "the engine"):
            got = self._engine.generate(request)
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
            experts=got.routed_experts,
        )

    def is_complete(self, piece: Sampled) -> bool:
        """True if the model itself ended the turn with this piece.

        The last token decides, whatever `finish` says: the engine tests the length before stop
        tokens, and an abort may come right after one. A job's own stop string ends a turn without a
        stop token; the bridge closes it.
        """
        return piece.finish is Finish.STOP or (
            len(piece.ids) > 0 and piece.ids[-1] in self._end_ids
        )

    def is_over(self, piece: Sampled) -> bool:
        """True if the turn ends with this piece, complete or cut; else its generation was
        interrupted.
        """
        return piece.finish is not Finish.ABORT or self.is_complete(piece)

    def is_kept(self, piece: Sampled) -> bool:
        """True if these tokens are kept. Those of an interrupted turn are, except under a grammar,
        which the engine would begin again in the middle of the turn.
        """
        return len(piece.ids) > 0 and (self.is_over(piece) or not self._has_grammar)

    def _parameters(self, sampled: int) -> Mapping[str, Json]:
        parameters = dict(self._job.sampling)
        if parameters.get("min_new_tokens"):
            parameters["min_new_tokens"] = max(0, parameters["min_new_tokens"] - sampled)
        if "sampling_seed" in parameters:  # with one seed all samples of a group would be equal
            parameters["sampling_seed"] = (parameters["sampling_seed"] + self._job.sample) % 2**63
        return parameters


def room(job: Job, engine: Engine, length: int) -> int:
    """Number of tokens that may follow a trace of `length` tokens."""
    return min(job.budget.max_tokens - length, engine.room(length))


def end_ids(job: Job, stop_ids: Sequence[int]) -> frozenset[int]:
    """The tokens at which the engine ends a turn: the model's `stop_ids` and the job's own. Under
    ignore_eos there are none.
    """
    if job.sampling.get("ignore_eos"):
        return frozenset()
    return frozenset(stop_ids) | frozenset(job.sampling.get("stop_token_ids") or ())


def ends_anywhere(job: Job) -> bool:
    """True if a turn may end after any token: at a stop string, or where a grammar ends."""
    return any(job.sampling.get(name) for name in ("stop", "stop_regex", *GRAMMARS))

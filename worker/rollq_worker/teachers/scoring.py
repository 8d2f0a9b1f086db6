"""Has the teachers of a job score each token that the policy sampled in an episode.

The invariant: a trajectory gets a logprob of each teacher for each sampled token, all of one
version of the teacher's weights, or the attempt fails. It knows nothing of pools or of Redis.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import compress

from rollq.errors import EngineFailure, JobFailure, TeacherFailure
from rollq.events import Finish, Observed, Prompt, Sampled
from rollq.images import references
from rollq.job import Job, Json
from rollq.teachers import Teacher, logprobs_of, top_ids_of, top_logprobs_of
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import Extra
from rollq_worker.protocols import (
    Adapter,
    Engine,
    Generated,
    Renderer,
    SampleRequest,
    Scores,
    Scoring,
)
from rollq_worker.teachers.prefix import prompt_with

ABORT_PAUSE_S = 0.2
"""Seconds between an abort by the engine, as for new weights, and the next try."""
VERSIONS = "teacher_versions"
"""Entry of `Trajectory.info` with the weight version of each teacher."""


def score(
    trajectory: Trajectory,
    *,
    engine_of: Callable[[Teacher], Engine],
    renderer_of: Callable[[Sequence[Json]], Renderer],
    waiting: Callable[[str, Engine], AbstractContextManager[Callable[[], None]]],
) -> Trajectory:
    """The closed trajectory with its teachers' scores as extras (`rollq.teachers`), and their
    weight versions in its info.

    `waiting` is a block in which the teacher of that name is asked; it returns the function that is
    called while its engine is waited for. Raises TeacherFailure, and JobFailure for an episode that
    cannot be scored.
    """
    job, closed = trajectory.job, trajectory.closed
    if not job.teachers or closed is None:
        return trajectory
    extras = dict(trajectory.extras)
    versions: dict[str, str] = {}
    for name, options in job.teachers.items():
        teacher = Teacher.read(options)
        engine = engine_of(teacher)
        with waiting(name, engine) as check:
            asked = _Asked(job, name, teacher, engine, renderer_of, check)
            versions[name] = asked.score(trajectory.trace_events())
        extras |= asked.extras()
    closed = replace(closed, info={**closed.info, VERSIONS: versions})
    return replace(trajectory, events=(*trajectory.events[:-1], closed), extras=extras)


class _Asked:
    """One teacher, and its scores of one episode."""

    def __init__(
        self,
        job: Job,
        name: str,
        teacher: Teacher,
        engine: Engine,
        renderer_of: Callable[[Sequence[Json]], Renderer],
        check: Callable[[], None],
    ) -> None:
        self._job = job
        self._name = name
        self._teacher = teacher
        self._engine = engine
        self._renderer_of = renderer_of
        self._check = check
        self._logprobs = array("f")
        self._top_ids = array("I")
        self._top_logprobs = array("f")

    def score(self, traces: Sequence[tuple[Prompt, list[Sampled | Observed]]]) -> str:
        """Scores all traces under one version of the weights, and returns it."""
        while True:
            for values in (self._logprobs, self._top_ids, self._top_logprobs):
                del values[:]
            versions = {self._score(*trace) for trace in traces if any(_mask(trace[1]))}
            if len(versions) <= 1:
                return next(iter(versions), "")

    def extras(self) -> Iterator[tuple[str, Extra]]:
        """The scores, by the names of their extras."""
        count = len(self._logprobs)
        if not count:
            return
        yield logprobs_of(self._name), _extra("float32", self._logprobs, count)
        if top_k := self._teacher.top_k:
            yield top_ids_of(self._name), _extra("uint32", self._top_ids, count, top_k)
            yield top_logprobs_of(self._name), _extra("float32", self._top_logprobs, count, top_k)

    def _score(self, prompt: Prompt, response: list[Sampled | Observed]) -> str:
        """Scores one trace. Returns the version of the weights."""
        if any(references(prompt.messages)) or any(
            references(event.replies) for event in response if isinstance(event, Observed)
        ):
            raise JobFailure(f"{self._job.id}: teachers score text alone, and it has images")
        ids = prompt.ids
        if self._teacher.prefix:
            ids = self._prompt_with_prefix(prompt)
        start = len(ids) - 1
        mask = _mask(response)
        last = mask.rindex(1) + 1
        ids = ids + array("I", b"".join(event.ids for event in response))[:last]
        got = self._ask(ids, start)
        scores = got.scores
        assert scores is not None
        self._logprobs.extend(compress(scores.logprobs, mask))
        if self._teacher.top_k:
            self._keep_top(scores, mask)
        return self._teacher.adapter or got.versions[-1].version

    def _prompt_with_prefix(self, prompt: Prompt) -> array[int]:
        try:
            return prompt_with(self._teacher.prefix, prompt, self._renderer_of(prompt.tools))
        except JobFailure as e:
            raise JobFailure(f"{self._job.id}: the prefix of teacher {self._name!r}: {e}") from e

    def _keep_top(self, scores: Scores, mask: bytes) -> None:
        if {len(ids) for ids in scores.top_ids} != {self._teacher.top_k}:
            raise TeacherFailure(
                f"{self._job.id}: teacher {self._name!r}: its engine does not name "
                f"{self._teacher.top_k} likeliest tokens at each place (top_k; vLLM's bound is "
                "--max-logprobs)"
            )
        for ids in compress(scores.top_ids, mask):
            self._top_ids.extend(ids)
        for logprobs in compress(scores.top_logprobs, mask):
            self._top_logprobs.extend(array("f", logprobs))

    def _ask(self, ids: array[int], start: int) -> Generated:
        name, _, version = self._teacher.adapter.partition("@")
        adapter = Adapter(name, version)
        request = SampleRequest(
            ids=ids,
            sampling={},
            max_new_tokens=1,
            key=self._job.id,
            check=self._check,
            scoring=Scoring(start=start, top_k=self._teacher.top_k),
            adapter=(lambda: adapter) if name else None,
        )
        while True:
            try:
                got = self._engine.generate(request)
            except (EngineFailure, JobFailure) as e:
                raise TeacherFailure(f"teacher {self._name!r}: {e}") from e
            if got.scores is not None:
                return got
            if got.finish is not Finish.ABORT:
                raise TeacherFailure(
                    f"{self._job.id}: teacher {self._name!r}: a trace of {len(ids)} tokens does "
                    "not fit the context of its engine: start it with a longer one, or submit jobs "
                    "with a smaller budget.max_tokens"
                )
            time.sleep(ABORT_PAUSE_S)
            self._check()


def _mask(response: Sequence[Sampled | Observed]) -> bytes:
    """1 for each token that was sampled."""
    return b"".join(
        (b"\1" if isinstance(event, Sampled) else b"\0") * len(event.ids) for event in response
    )


def _extra(dtype: str, values: array[int] | array[float], *shape: int) -> Extra:
    if sys.byteorder == "big":
        values.byteswap()
    assert len(values) == math.prod(shape)
    return Extra(dtype=dtype, shape=shape, data=values.tobytes())

"""The engines as one attempt may use them: which weights sample for it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from rollq.ledger.replies import Claim
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.models import asking
from rollq_worker.protocols import Adapter, Engine, Generated, SampleRequest
from rollq_worker.remote.waiting import wait

READ_AGAIN_S = 1.0
"""Seconds after which a turn that waits for weights reads again which version is published."""


def bound_engine(
    engine: EnginePool, attempt: Attempt, claim: Claim, models: Mapping[str, EnginePool]
) -> Engine:
    """The engine that samples for the attempt. `models` are engines of other models than the
    policy.
    """
    policy_engine = _policy_engine(engine, attempt, claim)
    if not attempt.job.models:
        return policy_engine
    return NamedEngines(policy_engine, engine, attempt, models)


def _policy_engine(engine: EnginePool, attempt: Attempt, claim: Claim) -> Engine:
    if attempt.job.adapter:
        return AdapterEngine(engine, attempt, attempt.job.adapter)
    if attempt.job.weight_version or claim.oldest_step is not None:
        return BoundEngine(engine, attempt, claim.oldest_step)
    return engine


class NamedEngines:
    """`protocols.Engine` for one attempt whose job has several models, by their names. Those of
    other `models` than the policy sample in whatever weights they have.
    """

    def __init__(
        self,
        policy_engine: Engine,
        engine: EnginePool,
        attempt: Attempt,
        models: Mapping[str, EnginePool],
    ) -> None:
        self.room = policy_engine.room
        self._policy_engine = policy_engine
        self._engine = engine
        self._attempt = attempt
        self._models = models

    def generate(self, request: SampleRequest) -> Generated:
        """See `protocols.Engine`."""
        options = self._attempt.job.models.get(request.model, {})
        if "model" in options:
            engine = self._models[options["model"]]
            with asking(self._attempt, options["model"], engine) as check:
                return engine.generate(replace(request, check=check))
        if "adapter" in options:
            adapter = AdapterEngine(self._engine, self._attempt, options["adapter"])
            return adapter.generate(request)
        return self._policy_engine.generate(request)


class AdapterEngine:
    """`protocols.Engine` for one attempt that samples with a LoRA adapter of its run. Each turn is
    sampled under the version that the job is pinned to, or else the one that is published, which
    keeps a bound on staleness. A turn that waits for an engine with that version switches to a
    newer one that is published meanwhile.
    """

    def __init__(self, engine: EnginePool, attempt: Attempt, adapter_name: str) -> None:
        self.room = engine.room
        self._engine = engine
        self._attempt = attempt
        self._adapter_name = adapter_name

    def generate(self, request: SampleRequest) -> Generated:
        """See `protocols.Engine`. Waits for the first publication."""
        latest_version = _LatestVersion(self._current_version, self._first_version(request))
        pinned = self._attempt.job.weight_version

        def latest_adapter() -> Adapter:
            return Adapter(self._adapter_name, latest_version())

        return self._engine.generate(replace(request, adapter=latest_adapter, pinned=pinned))

    def _first_version(self, request: SampleRequest) -> str:
        version = self._current_version()
        if version:
            return version
        with self._engine.waits_for_weights(request.key):
            while not version:
                wait(READ_AGAIN_S, request.check)
                version = self._current_version()
        return version

    def _current_version(self) -> str | None:
        return self._attempt.job.weight_version or self._attempt.published()


class _LatestVersion:
    """The version that is published, read again after READ_AGAIN_S seconds."""

    def __init__(self, read: Callable[[], str | None], version: str) -> None:
        self._read = read
        self._version = version
        self._read_at = time.monotonic()

    def __call__(self) -> str:
        if time.monotonic() - self._read_at > READ_AGAIN_S:
            self._version = self._read() or self._version
            self._read_at = time.monotonic()
        return self._version


class BoundEngine:
    """`protocols.Engine` for one attempt that accepts only some weights: the job's version if it is
    pinned, and those of `oldest_step` or later if the run bounds staleness.

    Admission lets a group in at the published step or before (docs/ledger.md), so tokens of the
    step that was published at the claim, or later, keep the bound.
    """

    def __init__(self, engine: Engine, attempt: Attempt, oldest_step: int | None) -> None:
        self.room = engine.room
        self._engine = engine
        self._attempt = attempt
        self._oldest_step = oldest_step
        self._accepted: set[str] = set()

    def generate(self, request: SampleRequest) -> Generated:
        """See `protocols.Engine`."""
        pinned = self._attempt.job.weight_version
        return self._engine.generate(replace(request, accepts=self._accepts, pinned=pinned))

    def _accepts(self, version: str) -> bool:
        if version in self._accepted:
            return True
        pinned = self._attempt.job.weight_version
        if pinned and version != pinned:
            return False
        oldest_step = self._oldest_step
        if oldest_step is not None and not self._attempt.is_fresh(version, oldest_step):
            return False
        self._accepted.add(version)
        return True

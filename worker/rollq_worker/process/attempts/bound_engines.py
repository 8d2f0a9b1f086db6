"""The engines as one attempt may use them: which weights sample for it."""

import time
from collections.abc import Mapping
from dataclasses import replace

from rollq.ledger.replies import Claim
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.outages import asking
from rollq_worker.protocols import Adapter, Engine, Generated, SampleRequest
from rollq_worker.remote.waiting import wait

READ_AGAIN_S = 1.0
"""Seconds after which a turn that waits for weights looks again which version is published."""


def bound_engine(
    engine: EnginePool, attempt: Attempt, claim: Claim, models: Mapping[str, EnginePool]
) -> Engine:
    """The engine that samples for the attempt. `models` are engines of other models than the
    policy.
    """
    own = _policys_engine(engine, attempt, claim)
    return NamedEngines(own, engine, attempt, models) if attempt.job.models else own


def _policys_engine(engine: EnginePool, attempt: Attempt, claim: Claim) -> Engine:
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
        self, own: Engine, engine: EnginePool, attempt: Attempt, models: Mapping[str, EnginePool]
    ) -> None:
        self.room = own.room
        self._own = own
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
        return self._own.generate(request)


class AdapterEngine:
    """`protocols.Engine` for one attempt with a LoRA adapter of the run: each turn is sampled under
    the version that the job is pinned to, else under the one that the run has published. That is as
    new as a bound on staleness asks.

    A turn that waits for an engine with that version goes on with the one that is published
    meanwhile.
    """

    def __init__(self, engine: EnginePool, attempt: Attempt, adapter: str) -> None:
        self.room = engine.room
        self._engine = engine
        self._attempt = attempt
        self._adapter = adapter

    def generate(self, request: SampleRequest) -> Generated:
        """See `protocols.Engine`. Waits for the first publication."""
        version = self._version(request)
        read_at = time.monotonic()

        def adapter() -> Adapter:
            nonlocal version, read_at
            if time.monotonic() - read_at > READ_AGAIN_S:
                version = self._wanted() or version
                read_at = time.monotonic()
            return Adapter(self._adapter, version)

        pinned = self._attempt.job.weight_version
        return self._engine.generate(replace(request, adapter=adapter, pinned=pinned))

    def _version(self, request: SampleRequest) -> str:
        version = self._wanted()
        if version:
            return version
        with self._engine.waits_for_weights(request.key):
            while not (version := self._wanted()):
                wait(READ_AGAIN_S, request.check)
        return version

    def _wanted(self) -> str | None:
        return self._attempt.job.weight_version or self._attempt.published()


class BoundEngine:
    """`protocols.Engine` for one attempt: only weights of the job's version sample for it, if it
    names one, and only those of the `oldest` step or a later one, if its run has a bound on
    staleness.

    Admission lets a group in at the published step or before (docs/ledger.md). So tokens of the
    step that was published when its job was claimed, and of later steps, keep the run's bound.
    """

    def __init__(self, engine: Engine, attempt: Attempt, oldest: int | None) -> None:
        self.room = engine.room
        self._engine = engine
        self._attempt = attempt
        self._oldest = oldest
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
        if self._oldest is not None and not self._attempt.are_fresh(version, self._oldest):
            return False
        self._accepted.add(version)
        return True

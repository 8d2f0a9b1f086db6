"""A run and the live workers, as somebody sees them who waits: for groups, for room, or for
nothing. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollq.job import Purpose
from rollq.ledger.replies import Standing
from rollq.ledger.workers.live_workers import LiveWorker
from rollq.snapshot.fleet import FleetSnapshot
from rollq.snapshot.run import RunSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWait:
    """A run, as somebody sees it who waits for groups of one purpose, or who only looks on."""

    fleet: FleetSnapshot
    run: RunSnapshot
    purpose: Purpose = Purpose.TRAIN
    wants: int = 0
    """Groups that a consumer asks for; 0: it does not say."""
    own: int = 0
    """Groups that the caller itself holds."""
    limit: int = 0
    """The number of unacknowledged groups at which a producer waits; 0: it does not say."""

    @property
    def name(self) -> str:
        return self.run.run

    @property
    def standing(self) -> Standing:
        return self.run.standings[self.purpose]

    @property
    def elsewhere(self) -> int:
        """Groups of the other purposes that are not acknowledged."""
        return sum(
            each.unacknowledged
            for purpose, each in self.run.standings.items()
            if purpose is not self.purpose
        )

    @property
    def bounded(self) -> bool:
        """Whether admission lets nothing in."""
        return self.standing.admission is not None and self.standing.admission.capacity <= 0

    @property
    def blocked(self) -> bool:
        """Whether a producer waits for that."""
        return self.bounded and self.standing.full == 0

    @property
    def ahead(self) -> int:
        """The limit at which a producer waits; 0: none waits there."""
        reached = (
            not self.bounded or self.standing.unacknowledged >= self.limit
        )  # else it waits for admission
        return (self.limit if reached else 0) or self.standing.full or 0

    @property
    def wanted(self) -> int:
        """Groups that a consumer cannot go on without; 0: none waits. One that has the batch of its
        step, and asks for a part of the next one, reads ahead as asynchronous trainers do.
        """
        if self.wants:
            return self.wants
        standing, bound = self.standing, self.standing.admission
        if bound and standing.held and standing.wanted < bound.groups_per_batch:
            given = standing.held + bound.trained
            return standing.wanted if given < (bound.step + 1) * bound.groups_per_batch else 0
        return standing.wanted

    @property
    def serving(self) -> Sequence[LiveWorker]:
        """The live workers that take jobs from the queues of the run's jobs."""
        queues = set(self.run.queues)
        return [
            worker for worker in self.fleet.workers if not queues or queues & set(worker.queues)
        ]

    @property
    def misfits(self) -> Mapping[str, str]:
        """Those of them that cannot play the run all the same, with the reason and the remedy."""
        run = self.run
        whys = {worker.name: dict(worker.left_alone).get(run.run, "") for worker in self.serving}
        for worker in self.serving:
            if not worker.plays(run.tokenizer, run.template):
                whys[worker.name] = (
                    f"it has tokenizer {worker.tokenizer[:12]} and chat template "
                    f"{worker.template[:12]}, the run"
                    f" {run.tokenizer[:12]} and {run.template[:12]}: start it with the "
                    "run's `--tokenizer` and"
                    " `--template`"
                )
        return {name: why for name, why in whys.items() if why}

    @property
    def able(self) -> Sequence[LiveWorker]:
        """Those of them that can."""
        misfits = self.misfits
        return [worker for worker in self.serving if worker.name not in misfits]

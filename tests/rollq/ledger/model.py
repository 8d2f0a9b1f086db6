"""What the ledger should hold, in plain Python: the model that the ledger's scripts are compared
with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger.replies import Claim

NAMES = ["a", "b", "c", "e"]
PURPOSE = {name: Purpose.EVAL if name == "e" else Purpose.TRAIN for name in NAMES}
BUDGET = {
    "engine": 5,
    "user": 5,
    "worker": 5,
    "reward": 5,
    "teacher": 5,
    "agent": 3,
    "env": 2,
    "job": 2,
    "cancelled": 1,
}
INFRASTRUCTURE = ("engine", "user", "worker", "reward", "teacher")
OWN = {FailureClass.ENV: 3, FailureClass.WORKER: 2}
TALLY = {"turns": 2, "sampled_tokens": 4, "total_tokens": 11}


class Shape(NamedTuple):
    size: int
    spare: int
    viable: int


@dataclass
class ModelJob:
    state: str = "queued"
    attempt: int = 0
    lease: str = "0#none"
    backoff: bool = False
    restart: bool = False
    journal: list[bytes] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    reach: int = 0
    kept: int = 0
    ended: tuple[str, str] = ("", "")
    discarded: bool = False
    reward: float = 0.0


@dataclass
class ModelGroup:
    seq: int
    state: str = "open"
    token: str = ""
    handed: int = 0


class Model:
    """The jobs and groups of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = dict(BUDGET)
        self.shapes: dict[str, Shape] = {}
        self.jobs: dict[str, ModelJob] = {}
        self.groups: dict[str, ModelGroup] = {}
        self.sealed = False
        names = "submitted done fenced delivered redelivered dropped resumed turns_saved"
        self.counts = dict.fromkeys(names.split(), 0)
        self.claims = 0

    def members(self, name: str) -> list[str]:
        return [
            f"r/{name}/{sample}"
            for sample in range(self.shapes[name].size + self.shapes[name].spare)
        ]

    def settle(self, job_id: str) -> None:
        """Its group is over with the first `size` graded members, or once all have ended."""
        name = job_id.split("/")[1]
        members = [self.jobs[member] for member in self.members(name)]
        done, left = (
            [m for m in members if m.state == "done"],
            [m for m in members if m.state in ("queued", "leased")],
        )
        if left and len(done) < self.shapes[name].size:
            return
        for member in left:
            member.state, member.journal, member.backoff = "surplus", [], False
        viable = len(done) >= self.shapes[name].viable
        self.groups[name].state = "ready" if viable else "dropped"
        self.counts["dropped"] += 0 if viable else len(done)
        self.free_the_rest(name)

    def free_the_rest(self, name: str) -> None:
        """Of a dropped group nothing is kept once all its dead members were discarded."""
        members = [self.jobs[member] for member in self.members(name)]
        if self.groups[name].state == "dropped" and all(
            m.discarded for m in members if m.state == "dead"
        ):
            for member in members:
                member.journal = []

    def fails(self, job_id: str, failure: str, how: str) -> str:
        found = self.jobs[job_id]
        found.failures[failure] = found.failures.get(failure, 0) + 1
        is_spent = found.failures[failure] >= self.budget[failure]
        found.state = "dead" if is_spent else "queued"
        found.backoff = found.state == "queued" and how == "fail" and failure in INFRASTRUCTURE
        found.restart = found.restart or failure not in INFRASTRUCTURE
        found.ended = (found.lease, how)
        if found.state == "dead":
            self.settle(job_id)
        return found.state

    def takes_over(self, found: ModelJob, got: Claim) -> None:
        """A new attempt: it goes on with the journal unless the job's own fault wants a fresh
        start.
        """
        assert (got.attempt, got.set_aside) == (
            found.attempt + 1,
            found.restart and bool(found.journal),
        )
        if found.restart:
            found.journal = []
        assert got.journal == len(found.journal)
        found.state, found.attempt, found.lease, found.restart = (
            "leased",
            got.attempt,
            got.lease,
            False,
        )
        found.kept = len(found.journal)

    def writes(self, found: ModelJob, *blobs: bytes) -> None:
        """New entries. The first one behind a journal that was found shows that the attempt went on
        with it.
        """
        if found.kept >= 2 and len(found.journal) == found.kept:
            self.counts["resumed"] += 1
            self.counts["turns_saved"] += found.kept
        found.journal += blobs

    def is_gone(self, job_id: str) -> bool:
        """Whether its group was acknowledged, so that only the group's record names it."""
        found, of = self.jobs.get(job_id), self.groups.get(job_id.split("/")[1])
        return bool(
            found
            and of
            and of.state == "acked"
            and (found.state in ("done", "surplus") or found.discarded)
        )

    def of_jobs(self, state: str) -> list[str]:
        return [job_id for job_id, found in self.jobs.items() if found.state == state]

    def of_state(self, *states: str) -> list[str]:
        return sorted(
            (n for n, g in self.groups.items() if g.state in states),
            key=lambda n: self.groups[n].seq,
        )

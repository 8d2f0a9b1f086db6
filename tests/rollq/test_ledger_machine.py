"""The ledger's scripts against a plain Python model, in random order, on a real Redis.

The model knows no leases in seconds: time passes when a rule makes a lease, a hold or a backoff run out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rollq.codec import encode_event
from rollq.connection import connect
from rollq.errors import FailureClass, Fenced, JobConflict, JournalConflict, LedgerError, NotHeld
from rollq.ledger import Claim, Ledger

from tests.rollq.samples import closed, group, job, observed

NAMES = ["a", "b", "c", "d"]
SIZE, VIABLE = 2, 1
BUDGET = {"engine": 5, "user": 5, "worker": 5, "env": 2, "job": 2, "cancelled": 1}
job_ids = st.builds("r/{}/{}".format, st.sampled_from(NAMES), st.integers(0, SIZE - 1))
tokens = st.sampled_from(["t", "u"])


@dataclass
class ModelJob:
    state: str = "queued"
    attempt: int = 0
    backoff: bool = False
    journal: list[bytes] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    reach: int = 0
    ended: tuple[int, str] = (0, "")


@dataclass
class ModelGroup:
    seq: int
    state: str = "open"
    token: str = ""
    handed: int = 0


class LedgerMachine(RuleBasedStateMachine):
    url = ""

    @initialize()
    def start(self) -> None:
        self.ledger = Ledger(connect(self.url), "r")
        self.ledger.redis.flushdb()
        self.jobs: dict[str, ModelJob] = {}
        self.groups: dict[str, ModelGroup] = {}
        self.sealed = False
        self.counts = dict.fromkeys(["submitted", "done", "fenced", "delivered", "redelivered", "dropped"], 0)
        self.claims = 0

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.redis.close()

    # -------------------------------------------------------------------------------------------------- the model

    def members(self, name: str) -> list[str]:
        return [f"r/{name}/{sample}" for sample in range(SIZE)]

    def settle(self, job_id: str) -> None:
        name = job_id.split("/")[1]
        states = [self.jobs[member].state for member in self.members(name)]
        if all(state in ("done", "dead") for state in states):
            viable = states.count("done") >= VIABLE
            self.groups[name].state = "ready" if viable else "dropped"
            self.counts["dropped"] += 0 if viable else states.count("done")

    def fails(self, job_id: str, failure: str, how: str) -> str:
        found = self.jobs[job_id]
        found.failures[failure] = found.failures.get(failure, 0) + 1
        found.state = "dead" if found.failures[failure] >= BUDGET[failure] else "queued"
        found.backoff = found.state == "queued" and how == "fail" and failure in ("engine", "user", "worker")
        found.ended = (found.attempt, how)
        if found.state == "dead":
            self.settle(job_id)
        return found.state

    def holds(self, job_id: str, attempt: int) -> bool:
        found = self.jobs.get(job_id)
        return found is not None and found.state == "leased" and found.attempt == attempt

    def attempt_of(self, job_id: str, stale: int) -> int:
        return max(1, self.jobs[job_id].attempt - stale) if job_id in self.jobs else 1

    def of_state(self, *states: str) -> list[str]:
        return sorted((n for n, g in self.groups.items() if g.state in states), key=lambda n: self.groups[n].seq)

    # -------------------------------------------------------------------------------------------------- the rules

    @rule(name=st.sampled_from(NAMES), other=st.booleans())
    def submit(self, name: str, other: bool) -> None:
        jobs = group(name, SIZE, min_viable=VIABLE, seed=int(other and name in self.groups))
        if name in self.groups and other:
            with pytest.raises(JobConflict):
                self.ledger.submit(jobs)
        elif name in self.groups:
            assert self.ledger.submit(jobs).known == self.members(name)
        elif self.sealed:
            with pytest.raises(LedgerError):
                self.ledger.submit(jobs)
        else:
            assert self.ledger.submit(jobs).new == self.members(name)
            self.groups[name] = ModelGroup(seq=len(self.groups) + 1)
            self.jobs |= {member: ModelJob() for member in self.members(name)}
            self.counts["submitted"] += SIZE

    @rule(job_id=job_ids)
    def claim(self, job_id: str) -> None:
        self.claims += 1
        got = self.ledger.claim(job_id, worker="w", token=f"c{self.claims}")
        found = self.jobs.get(job_id)
        if found is None:
            assert got.reason == "unknown"  # type: ignore[union-attr]
        elif found.state != "queued":
            assert got.reason == found.state  # type: ignore[union-attr]
        elif found.backoff:
            assert got.reason == "early"  # type: ignore[union-attr]
        else:
            assert isinstance(got, Claim)
            assert (got.attempt, got.set_aside) == (found.attempt + 1, bool(found.journal))
            assert got.job == job(got.job.sample, got.job.group, min_viable=VIABLE, seq=got.job.seq)
            found.state, found.attempt, found.journal = "leased", got.attempt, []

    @rule(job_id=job_ids, stale=st.sampled_from([0, 0, 0, 1]), off=st.sampled_from([0, 0, 0, 0, 1, -1]))
    def append(self, job_id: str, stale: int, off: int) -> None:
        attempt = self.attempt_of(job_id, stale)
        journal = self.jobs[job_id].journal if job_id in self.jobs else []
        index = max(0, len(journal) + off)
        blob = encode_event(observed(index), job_id)
        if not self.holds(job_id, attempt):
            self.counts["fenced"] += 1
            with pytest.raises(Fenced):
                self.ledger.append(job_id, attempt, index, blob)
        elif index > len(journal):
            with pytest.raises(JournalConflict):
                self.ledger.append(job_id, attempt, index, blob)
        else:
            self.ledger.append(job_id, attempt, index, blob)
            journal[index:] = [blob]
            if index + 1 > self.jobs[job_id].reach:
                self.jobs[job_id].reach = index + 1
                self.jobs[job_id].failures["worker"] = 0

    @rule(job_id=job_ids, stale=st.sampled_from([0, 0, 0, 1]), reward=st.sampled_from([0.0, 1.0]))
    def complete(self, job_id: str, stale: int, reward: float) -> None:
        attempt = self.attempt_of(job_id, stale)
        found = self.jobs.get(job_id)
        index, blob = len(found.journal) if found else 0, encode_event(closed(reward), job_id)
        if self.holds(job_id, attempt):
            assert found
            self.ledger.complete(job_id, attempt, index, blob)
            found.journal.append(blob)
            found.state, found.ended = "done", (attempt, "complete")
            self.counts["done"] += 1
            self.settle(job_id)
        elif found and found.ended == (attempt, "complete"):
            self.ledger.complete(job_id, attempt, index, blob)
        else:
            self.counts["fenced"] += 1
            with pytest.raises(Fenced):
                self.ledger.complete(job_id, attempt, index, blob)

    @rule(job_id=job_ids, stale=st.sampled_from([0, 0, 0, 1]), failure=st.sampled_from(FailureClass))
    def fail(self, job_id: str, stale: int, failure: FailureClass) -> None:
        attempt = self.attempt_of(job_id, stale)
        found = self.jobs.get(job_id)
        if self.holds(job_id, attempt):
            expected = self.fails(job_id, failure, "fail")
            assert self.ledger.fail(job_id, attempt, failure, "why").status == expected
        elif found and found.ended == (attempt, "fail"):
            self.ledger.fail(job_id, attempt, failure, "why")
        else:
            self.counts["fenced"] += 1
            with pytest.raises(Fenced):
                self.ledger.fail(job_id, attempt, failure, "why")

    @rule(job_id=job_ids, stale=st.sampled_from([0, 0, 0, 1]))
    def release(self, job_id: str, stale: int) -> None:
        attempt = self.attempt_of(job_id, stale)
        found = self.jobs.get(job_id)
        if self.holds(job_id, attempt):
            assert found
            self.ledger.release(job_id, attempt)
            found.state, found.ended = "queued", (attempt, "release")
        elif found and found.ended == (attempt, "release"):
            self.ledger.release(job_id, attempt)
        else:
            self.counts["fenced"] += 1
            with pytest.raises(Fenced):
                self.ledger.release(job_id, attempt)

    @rule(data=st.data())
    def leases_run_out(self, data: st.DataObject) -> None:
        leased = sorted(job_id for job_id, found in self.jobs.items() if found.state == "leased")
        chosen = [job_id for job_id in leased if data.draw(st.booleans())]
        for job_id in chosen:
            self.ledger.redis.zadd(self.ledger.keys.leased, {f"{job_id}#{self.jobs[job_id].attempt}": 1}, xx=True)
        self.ledger.redis.hset(self.ledger.keys.meta, mapping={"reaped": self.ledger.now(), "grace": 0})
        expected = {job_id for job_id in chosen if self.fails(job_id, "worker", "expiry") == "queued"}
        # What runs out is due at once; released and freshly failed ones may be due as well.
        assert expected <= set(self.ledger.reap())

    @rule(job_id=job_ids)
    def a_backoff_runs_out(self, job_id: str) -> None:
        if job_id in self.jobs and self.jobs[job_id].backoff:
            self.jobs[job_id].backoff = False
            self.ledger.redis.hset(self.ledger.keys.job(job_id), "not_before", 0)

    @rule()
    def publish(self) -> None:
        due = self.ledger.reap(broker_empty=True)
        assert all(self.jobs[job_id].state == "queued" for job_id in due)
        self.ledger.confirm(due)

    @rule(job_id=job_ids)
    def bounce(self, job_id: str) -> None:
        self.ledger.bounce(job_id)
        if job_id in self.jobs and self.jobs[job_id].state == "queued" and not self.jobs[job_id].backoff:
            assert job_id in self.ledger.reap()

    @rule(token=tokens, groups=st.integers(1, 3))
    def take(self, token: str, groups: int) -> None:
        mine = [name for name in self.of_state("held") if self.groups[name].token == token]
        expected = mine or self.of_state("ready")[:groups]
        if not mine and len(expected) < groups and not (self.sealed and not self.of_state("open")):
            expected = []
        taken = self.ledger.take(groups, token)
        assert [g.id for g in taken] == expected
        for got in taken:
            assert got.members == [m for m in self.members(got.id) if self.jobs[m].state == "done"]
            assert got.dead == [m for m in self.members(got.id) if self.jobs[m].state == "dead"]
        if not mine:
            for name in expected:
                found = self.groups[name]
                self.counts["redelivered"] += found.handed > 0
                found.state, found.token, found.handed = "held", token, found.handed + 1

    @rule(token=tokens)
    def holds_run_out(self, token: str) -> None:
        mine = [name for name in self.of_state("held") if self.groups[name].token == token]
        for name in mine:
            self.ledger.redis.zadd(self.ledger.keys.held("train"), {name: 1}, xx=True)
            self.groups[name].state = "ready"
        if mine:  # only a taker finds out
            assert self.ledger.take(99, "nobody") == [] or self.sealed
            if self.sealed and not self.of_state("open"):
                for name in self.of_state("ready"):
                    found = self.groups[name]
                    self.counts["redelivered"] += found.handed > 0
                    found.state, found.token, found.handed = "held", "nobody", found.handed + 1

    @precondition(lambda self: self.of_state("held", "acked"))
    @rule(token=tokens, data=st.data())
    def ack(self, token: str, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(self.of_state("held", "acked")), min_size=1, unique=True))
        done = [m for name in names for m in self.members(name) if self.jobs[m].state == "done"]
        if all(self.groups[name].token == token for name in names):
            self.ledger.ack(token, done)
            for name in names:
                if self.groups[name].state == "held":
                    self.groups[name].state = "acked"
                    self.counts["delivered"] += sum(self.jobs[m].state == "done" for m in self.members(name))
        else:
            with pytest.raises(NotHeld):
                self.ledger.ack(token, done)

    @rule(token=tokens)
    def extend(self, token: str) -> None:
        if any(self.groups[name].token == token for name in self.of_state("held")):
            self.ledger.extend(token)
        else:
            with pytest.raises(NotHeld):
                self.ledger.extend(token)

    @precondition(lambda self: len(self.groups) > 2)
    @rule()
    def seal(self) -> None:
        self.ledger.seal()
        self.sealed = True

    # --------------------------------------------------------------------------------------------------- and always

    @invariant()
    def the_ledger_agrees(self) -> None:
        if not hasattr(self, "jobs"):
            return
        stats = self.ledger.stats()
        assert {name: stats[name] for name in self.counts} == self.counts
        states = [found.state for found in self.jobs.values()]
        assert {s: stats[s] for s in ("queued", "leased", "done", "dead")} == {
            s: states.count(s) for s in ("queued", "leased", "done", "dead")
        }
        for name in ("open", "ready", "held", "acked", "dropped"):
            assert stats[f"groups_{name}"] == len(self.of_state(name)), name
        assert stats["duplicates"] == 0
        acked = {m for name in self.of_state("acked") for m in self.members(name) if self.jobs[m].state == "done"}
        for job_id, found in self.jobs.items():
            assert self.ledger.journal(job_id) == ([] if job_id in acked else found.journal)


def test_the_ledger_is_what_the_model_says(redis_url: str) -> None:
    class Machine(LedgerMachine):
        url = redis_url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            print_blob=False,
        ),
    )

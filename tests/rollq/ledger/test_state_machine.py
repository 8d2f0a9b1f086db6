"""The ledger's scripts against a plain Python model, in random order, on a real Redis.

The model knows no leases in seconds: time passes when a rule makes a lease, a hold or a backoff run
out. Redis's clock is set by moving all that was written by it the other way.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from rollq.errors import FailureClass, Fenced, JobConflict, JournalConflict, LedgerError
from rollq.job import Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Claim
from rollq.servers.connection import connect
from rollq.wire.events import encode_event
from tests.rollq.ledger.clock_rules import ClockRules
from tests.rollq.ledger.delivery_rules import DeliveryRules
from tests.rollq.ledger.machines import run_machine
from tests.rollq.ledger.model import BUDGET, NAMES, OWN, PURPOSE, TALLY, ModelGroup, ModelJob, Shape
from tests.rollq.samples import closed, group, job, observed

SHAPES = st.builds(Shape, st.integers(1, 3), st.sampled_from([1, 2, 0]), st.integers(1, 2))


class LedgerMachine(DeliveryRules, ClockRules):
    url = ""

    @initialize(
        names=st.lists(st.sampled_from(NAMES), min_size=2, unique=True),
        shapes=st.tuples(*[SHAPES] * len(NAMES)),
        own=st.booleans(),
    )
    def start(self, names: list[str], shapes: list[Shape], own: bool) -> None:
        for name, (size, spare, viable) in zip(NAMES, shapes, strict=True):
            self.shapes[name] = Shape(
                size, 0 if PURPOSE[name] is Purpose.EVAL else spare, min(viable, size)
            )
        self.ids = [job_id for name in NAMES for job_id in self.members(name)]
        self.ledger = Ledger(connect(self.url), "r")
        self.reader = LedgerReader(self.ledger.redis, "r")
        self.dead_letters = DeadLetters(self.ledger.redis, "r")
        self.ledger.redis.flushdb()
        self.budget = BUDGET | (OWN if own else {})
        self.ledger.pin_budgets(OWN if own else {})
        for name in names:
            self.submit(name, other=False)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.redis.close()

    def pick(self, data: st.DataObject, state: str) -> str:
        """A job, most often one in that state."""
        return data.draw(st.sampled_from(self.of_jobs(state) * 4 + self.ids), label="job")

    # ----------------------------------------------------------------
    # the rules

    @rule(name=st.sampled_from(NAMES), other=st.sampled_from([False, False, True]))
    def submit(self, name: str, other: bool) -> None:
        seed = int(other and name in self.groups)
        shape = self.shapes[name]
        jobs = group(
            name,
            shape.size,
            spare=shape.spare,
            min_viable=shape.viable,
            purpose=PURPOSE[name],
            seed=seed,
        )
        if name in self.groups and other:
            with pytest.raises(JobConflict):
                self.ledger.submit(jobs)
        elif name in self.groups:
            submission = self.ledger.submit(jobs)
            known = submission.acked if self.groups[name].state == "acked" else submission.known
            assert known == self.members(name)
        elif self.sealed:
            with pytest.raises(LedgerError):
                self.ledger.submit(jobs)
        else:
            assert self.ledger.submit(jobs).new == self.members(name)
            self.groups[name] = ModelGroup(seq=len(self.groups) + 1)
            self.jobs |= {member: ModelJob() for member in self.members(name)}
            self.counts["submitted"] += len(jobs)

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "queued")
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
            self.takes(job_id, got)

    def takes(self, job_id: str, got: object) -> None:
        assert isinstance(got, Claim)
        self.takes_over(self.jobs[job_id], got)
        _, name, sample = job_id.split("/")
        size, spare, viable = self.shapes[name]
        like = {"size": size, "spare": spare, "min_viable": viable, "purpose": PURPOSE[name]}
        assert got.job == job(int(sample), name, seq=self.groups[name].seq, **like)

    def claim_it(self, job_id: str) -> None:
        """One that is queued."""
        self.claims += 1
        self.takes(job_id, self.ledger.claim(job_id, worker="w", token=f"c{self.claims}"))

    @precondition(lambda self: self.of_state("open"))
    @rule(data=st.data(), turns=st.integers(1, 3))
    def begin_a_group(self, data: st.DataObject, turns: int) -> None:
        for job_id in self.members(data.draw(st.sampled_from(self.of_state("open")))):
            if self.jobs[job_id].state == "queued" and not self.jobs[job_id].backoff:
                self.claim_it(job_id)
                self.append_to(job_id, 0, turns)

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data(), off=st.sampled_from([0, 0, 0, 1, -1]), turns=st.integers(1, 3))
    def append(self, data: st.DataObject, off: int, turns: int) -> None:
        self.append_to(data.draw(st.sampled_from(self.of_jobs("leased"))), off, turns)

    def append_to(self, job_id: str, off: int, turns: int) -> None:
        """The first of the entries may be there already."""
        found = self.jobs[job_id]
        index = max(0, len(found.journal) + off)
        blobs = [encode_event(observed(index + turn), job_id) for turn in range(turns)]
        if index > len(found.journal):
            with pytest.raises(JournalConflict) as caught:
                self.ledger.append(job_id, found.lease, index, blobs)
            assert caught.value.length == len(found.journal)
            return
        self.ledger.append(job_id, found.lease, index, blobs)
        if blobs[-1:] != found.journal[index + turns - 1 :]:
            self.writes(found, *blobs[len(found.journal) - index :])
        if index + turns > found.reach:
            found.reach = index + turns
            found.failures["worker"] = 0

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(
        data=st.data(),
        failure=st.sampled_from(FailureClass),
    )
    def fail(self, data: st.DataObject, failure: FailureClass) -> None:
        job_id = data.draw(st.sampled_from(self.of_jobs("leased")))
        expected = self.fails(job_id, failure, "fail")
        assert self.ledger.fail(job_id, self.jobs[job_id].lease, failure, "why").status == expected
        if self.jobs[job_id].backoff:  # longer than this takes on any machine: only a rule ends it
            later = self.ledger.scripts.now() + 29
            self.ledger.redis.hset(self.ledger.keys.job(job_id), "not_before", later)
            self.ledger.redis.zadd(self.ledger.keys.queued, {job_id: later})

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        found = self.jobs[job_id := data.draw(st.sampled_from(self.of_jobs("leased")))]
        self.ledger.release(job_id, found.lease)
        found.state, found.ended = "queued", (found.lease, "release")

    @rule(data=st.data(), stale=st.sampled_from([None, 0, 1]))
    def write_without_a_lease(self, data: st.DataObject, stale: int | None) -> None:
        """Only the attempt that ended the job itself may say so again. After a rollback two may
        have one number.
        """
        job_id = data.draw(st.sampled_from(self.ids))
        found = self.jobs.get(job_id, ModelJob())
        lease = found.lease if stale is None else f"{found.attempt - stale}#older"
        if found.state == "leased" and stale is None:
            return
        writes = {
            "append": lambda: self.ledger.append(job_id, lease, 0, [b"x"]),
            "complete": lambda: self.ledger.complete(
                job_id, lease, 0, [encode_event(closed(), job_id)]
            ),
            "fail": lambda: self.ledger.fail(job_id, lease, FailureClass.ENV, "why"),
            "release": lambda: self.ledger.release(job_id, lease),
        }
        for how, write in writes.items():
            if found.ended == (lease, how) and not self.is_gone(job_id):
                write()
            else:
                self.counts["fenced"] += 1
                with pytest.raises(Fenced, match=job_id):
                    write()
        if found.state == "leased":
            assert self.ledger.renew_leases([(job_id, lease)]) == [(job_id, lease)]

    @precondition(lambda self: self.of_state("open"))
    @rule(data=st.data(), cancel=st.sampled_from([-1, -1, -1, 0, 1]))
    def end_a_group(self, data: st.DataObject, cancel: int) -> None:
        """Its members that have not ended are completed, or cancelled, until it has
        enough of them.
        """
        members = self.members(data.draw(st.sampled_from(self.of_state("open"))))
        for sample, job_id in enumerate(data.draw(st.permutations(members))):
            found = self.jobs[job_id]
            if found.state == "queued" and found.backoff:
                self.forget_backoff(job_id)
            if found.state == "queued":
                self.claim_it(job_id)
            if found.state == "leased" and sample == cancel:
                self.ledger.fail(job_id, found.lease, FailureClass.CANCELLED, "why")
                self.fails(job_id, "cancelled", "fail")
            elif found.state == "leased":
                found.reward = sample + 0.3
                blob = encode_event(closed(found.reward), job_id)
                for _ in range(2):
                    self.ledger.complete(job_id, found.lease, len(found.journal), [blob], **TALLY)
                self.writes(found, blob)
                found.state, found.ended = "done", (found.lease, "complete")
                self.counts["done"] += 1
                self.settle(job_id)

    @rule()
    def publish(self) -> None:
        due = self.reap("rollq")
        assert all(self.jobs[job_id].state == "queued" for job_id in due)
        self.ledger.confirm(sorted(due))

    @rule(data=st.data())
    def bounce(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "queued")
        self.ledger.resend(job_id)
        if (
            job_id in self.jobs
            and self.jobs[job_id].state == "queued"
            and not self.jobs[job_id].backoff
        ):
            assert job_id in self.reap()

    @precondition(lambda self: self.of_jobs("queued") or self.of_jobs("leased"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = self.pick(data, data.draw(st.sampled_from(["queued", "leased"])))
        found = self.jobs.get(job_id)
        if found and found.state in ("queued", "leased"):
            self.fails(job_id, "cancelled", "cancel")
            for _ in range(2):
                self.dead_letters.cancel(job_id)
        elif found is None or found.state in ("done", "surplus"):
            with pytest.raises(LedgerError):
                self.dead_letters.cancel(job_id)

    @rule(data=st.data())
    def cancel_a_group(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        left = [m for m in self.members(name) if self.jobs[m].state in ("queued", "leased")]
        assert self.dead_letters.cancel_group(name) == len(left)
        for job_id in left:
            self.fails(job_id, "cancelled", "cancel")

    @precondition(lambda self: self.of_jobs("dead"))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "dead")
        found, of = self.jobs.get(job_id), self.groups.get(job_id.split("/")[1])
        if (
            found
            and of
            and found.state == "dead"
            and not found.discarded
            and of.state in ("open", "dropped")
        ):
            self.dead_letters.requeue(job_id)
            found.state, found.backoff, found.restart, found.failures, found.reach = (
                "queued",
                False,
                True,
                {},
                0,
            )
            if of.state == "dropped":
                of.state = "open"
                self.counts["dropped"] -= sum(
                    self.jobs[m].state == "done" for m in self.members(job_id.split("/")[1])
                )
            assert job_id in self.reap()
            self.claim_it(job_id)
        else:
            with pytest.raises(LedgerError):
                self.dead_letters.requeue(job_id)

    @precondition(lambda self: self.of_jobs("dead"))
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "dead")
        found = self.jobs.get(job_id)
        if found is None or found.state != "dead":
            with pytest.raises(LedgerError):
                self.dead_letters.discard(job_id)
            return
        self.dead_letters.discard(job_id)
        found.discarded, found.journal = True, []
        self.free_the_rest(job_id.split("/")[1])

    @precondition(lambda self: len(self.groups) > 2)
    @rule()
    def seal(self) -> None:
        self.ledger.seal()
        self.sealed = True

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "queued")
        state, found = self.reader.job(job_id), self.jobs.get(job_id)
        if state is None or found is None:
            assert state is None
            assert found is None
        else:
            assert state.state == found.state
            # Only the group's small record is left.
            if state.group_state == "acked" and state.job is None:
                return
            assert state.attempt == found.attempt
            assert state.failures == {
                name: count for name, count in found.failures.items() if count
            }

    # ----------------------------------------------------------------
    # and always

    @invariant()
    def the_ledger_agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        stats = self.reader.stats()
        assert {name: stats[name] for name in self.counts} == self.counts
        states = [found.state for found in self.jobs.values()]
        for state in ("queued", "leased", "done", "dead", "surplus"):
            assert stats[state] == states.count(state), state
        for name in ("open", "ready", "held", "acked", "dropped"):
            assert stats[f"groups_{name}"] == len(self.of_state(name)), name
        done = [found.reward for found in self.jobs.values() if found.state == "done"]
        assert {name: stats[name] for name in TALLY} == {
            name: each * len(done) for name, each in TALLY.items()
        }
        assert stats["stops"] == ({"done": len(done)} if done else {})
        assert stats["reward_mean"] == (pytest.approx(sum(done) / len(done)) if done else None)
        acked = {
            m
            for name in self.of_state("acked")
            for m in self.members(name)
            if self.jobs[m].state == "done"
        }
        pipe = self.ledger.redis.pipeline(transaction=False)
        for job_id in self.jobs:
            pipe.lrange(self.ledger.keys.journal(job_id), 0, -1)
        expected = [[] if job_id in acked else found.journal for job_id, found in self.jobs.items()]
        assert pipe.execute() == expected


@pytest.mark.timeout(900)
def test_the_ledger_is_what_the_model_says(redis_url: str) -> None:
    run_machine(LedgerMachine, redis_url, examples=110, steps=50)

"""The ledger's scripts against a plain Python model, in random order, on a real Redis.

The model knows no leases in seconds: time passes when a rule makes a lease, a hold or a backoff run out. Redis's clock
is set by moving all that was written by it the other way.
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
from tests.rollq.groups import deliveries
from tests.rollq.ledger.delivery_rules import DeliveryRules
from tests.rollq.ledger.machines import run_machine
from tests.rollq.ledger.model import BUDGET, IDS, NAMES, OWN, PURPOSE, SIZE, TALLY, VIABLE, ModelGroup, ModelJob
from tests.rollq.samples import closed, group, job, observed


class LedgerMachine(DeliveryRules):
    url = ""

    @initialize(names=st.lists(st.sampled_from(NAMES), min_size=2, unique=True), own=st.booleans())
    def start(self, names: list[str], own: bool) -> None:
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

    # ------------------------------------------------------------------------------------------------ time passes

    def calm(self) -> None:
        """Redis was never away."""
        self.ledger.redis.hset(self.ledger.keys.meta, mapping={"beat": self.ledger.scripts.now(), "grace": 0})

    def leases(self) -> list[tuple[str, str]]:
        return [(job_id, self.jobs[job_id].lease) for job_id in self.of_jobs("leased")]

    def reap(self, *empty: str) -> set[str]:
        return {message.job_id for message in self.ledger.reap(100, empty)}

    def pick(self, data: st.DataObject, state: str) -> str:
        """A job, most often one in that state."""
        return data.draw(st.sampled_from(self.of_jobs(state) * 4 + IDS), label="job")

    # -------------------------------------------------------------------------------------------------- the rules

    @rule(name=st.sampled_from(NAMES), other=st.sampled_from([False, False, True]))
    def submit(self, name: str, other: bool) -> None:
        seed = int(other and name in self.groups)
        jobs = group(name, SIZE, min_viable=VIABLE[name], purpose=PURPOSE[name], seed=seed)
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
            self.counts["submitted"] += SIZE

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "queued")
        self.claims += 1
        got = self.ledger.claim(job_id, worker="w", token=f"c{self.claims}")
        found = self.jobs.get(job_id)
        if found is None:
            assert got.reason == "unknown"  # type: ignore[union-attr]
        elif found.state != "queued":
            assert got.reason == ("done" if self.is_gone(job_id) else found.state)  # type: ignore[union-attr]
        elif found.backoff:
            assert got.reason == "early"  # type: ignore[union-attr]
        else:
            assert isinstance(got, Claim)
            self.takes_over(found, got)
            name = got.job.group
            assert got.job == job(
                got.job.sample, name, min_viable=VIABLE[name], purpose=PURPOSE[name], seq=self.groups[name].seq
            )

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data(), off=st.sampled_from([0, 0, 0, 0, 1, -1]))
    def append(self, data: st.DataObject, off: int) -> None:
        job_id = data.draw(st.sampled_from(self.of_jobs("leased")))
        found = self.jobs[job_id]
        index = max(0, len(found.journal) + off)
        blob = encode_event(observed(index), job_id)
        if index > len(found.journal):
            with pytest.raises(JournalConflict):
                self.ledger.append(job_id, found.lease, index, [blob])
        else:
            self.ledger.append(job_id, found.lease, index, [blob])
            found.journal[index:] = [blob]
            if index + 1 > found.reach:
                found.reach = index + 1
                found.failures["worker"] = 0

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data(), failure=st.sampled_from(FailureClass))
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

    @rule(data=st.data(), stale=st.integers(0, 1))
    def write_without_a_lease(self, data: st.DataObject, stale: int) -> None:
        """Only the attempt that ended the job itself may say so again."""
        job_id = data.draw(st.sampled_from(IDS))
        found = self.jobs.get(job_id, ModelJob())
        lease = f"{found.attempt - 1}#older" if stale else found.lease
        if found.state == "leased" and not stale:
            return
        writes = {
            "append": lambda: self.ledger.append(job_id, lease, 0, [b"x"]),
            "complete": lambda: self.ledger.complete(job_id, lease, 0, [encode_event(closed(), job_id)]),
            "fail": lambda: self.ledger.fail(job_id, lease, FailureClass.ENV, "why"),
            "release": lambda: self.ledger.release(job_id, lease),
        }
        for how, write in writes.items():
            if found.ended == (lease, how) and not self.is_gone(job_id):
                write()
            else:
                self.counts["fenced"] += 1
                with pytest.raises(Fenced):
                    write()

    @precondition(lambda self: self.of_state("open"))
    @rule(data=st.data(), cancel=st.sampled_from([-1, -1, -1, 0, 1]))
    def end_a_group(self, data: st.DataObject, cancel: int) -> None:
        """Its members that have not ended are completed, or cancelled."""
        for sample, job_id in enumerate(self.members(data.draw(st.sampled_from(self.of_state("open"))))):
            found = self.jobs[job_id]
            if found.backoff:
                self.forget_backoff(job_id)
            if found.state == "queued":
                self.claims += 1
                got = self.ledger.claim(job_id, worker="w", token=f"c{self.claims}")
                assert isinstance(got, Claim)
                self.takes_over(found, got)
            if found.state == "leased" and sample == cancel:
                self.ledger.fail(job_id, found.lease, FailureClass.CANCELLED, "why")
                self.fails(job_id, "cancelled", "fail")
            elif found.state == "leased":
                found.reward = sample + 0.3
                blob = encode_event(closed(found.reward), job_id)
                for _ in range(2):
                    self.ledger.complete(job_id, found.lease, len(found.journal), [blob], **TALLY)
                found.journal.append(blob)
                found.state, found.ended = "done", (found.lease, "complete")
                self.counts["done"] += 1
                self.settle(job_id)

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data(), after_an_outage=st.booleans())
    def leases_run_out(self, data: st.DataObject, after_an_outage: bool) -> None:
        leased = self.of_jobs("leased")
        chosen = data.draw(st.lists(st.sampled_from(leased), min_size=1, unique=True))
        for job_id in chosen:
            self.ledger.redis.zadd(self.ledger.keys.leased, {f"{job_id}#{self.jobs[job_id].lease}": 1}, xx=True)
        self.calm()
        if after_an_outage:
            self.ledger.redis.hset(self.ledger.keys.meta, "beat", self.ledger.scripts.now() - 6)
            assert not self.reap() & set(leased)
            assert self.ledger.renew_leases(self.leases()) == []
            return
        expected = {job_id for job_id in chosen if self.fails(job_id, "worker", "expiry") == "queued"}
        # What runs out is due at once; released and freshly failed ones may be due as well.
        assert expected <= self.reap()

    @rule(by=st.sampled_from([-7200.0, -100.0, 100.0, 7200.0]))
    def redis_is_set_another_time(self, by: float) -> None:
        """No lease is lost, and no job waits longer."""
        redis, keys = self.ledger.redis, self.ledger.keys
        self.calm()
        for key in (keys.queued, keys.leased, *(f"{keys.prefix}held:{purpose}" for purpose in Purpose)):
            times = {member: at - by for member, at in redis.zrange(key, 0, -1, withscores=True) if at > 0}
            if times:
                redis.zadd(key, times)
        for job_id, found in self.jobs.items():
            # A backoff that has run out stays so, wherever the clock goes.
            for name in ("not_before", "deadline") if found.backoff else ("deadline",):
                if at := float(redis.hget(keys.job(job_id), name) or 0):
                    redis.hset(keys.job(job_id), name, at - by)
            found.backoff = False
        for purpose in Purpose:
            if heard := float(redis.hget(keys.meta, f"heard:{purpose}") or 0):
                redis.hset(keys.meta, f"heard:{purpose}", heard - by)
        redis.hset(keys.meta, "beat", self.ledger.scripts.now() - by)
        due = self.reap()
        assert due <= set(self.of_jobs("queued"))
        if abs(by) > 1000:
            assert due == set(self.of_jobs("queued"))
        before = self.ledger.scripts.now()
        assert self.ledger.renew_leases(self.leases()) == []
        ends = [redis.zscore(keys.leased, f"{job_id}#{lease}") for job_id, lease in self.leases()]
        assert all(before + 15 <= end <= self.ledger.scripts.now() + 15 for end in ends)
        for name in self.of_state("held"):
            deliveries(self.ledger).renew_holds([self.groups[name].token], purpose=PURPOSE[name])

    @precondition(lambda self: any(found.backoff for found in self.jobs.values()))
    @rule(data=st.data())
    def a_backoff_runs_out(self, data: st.DataObject) -> None:
        self.forget_backoff(data.draw(st.sampled_from([job_id for job_id, j in self.jobs.items() if j.backoff])))

    def forget_backoff(self, job_id: str) -> None:
        self.jobs[job_id].backoff = False
        self.ledger.redis.hset(self.ledger.keys.job(job_id), "not_before", 0)

    @rule()
    def publish(self) -> None:
        due = self.reap("rollq")
        assert all(self.jobs[job_id].state == "queued" for job_id in due)
        self.ledger.confirm(sorted(due))

    @rule(data=st.data())
    def bounce(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "queued")
        self.ledger.resend(job_id)
        if job_id in self.jobs and self.jobs[job_id].state == "queued" and not self.jobs[job_id].backoff:
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
        elif found is None or found.state == "done":
            with pytest.raises(LedgerError):
                self.dead_letters.cancel(job_id)

    @precondition(lambda self: self.of_jobs("dead"))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "dead")
        found, of = self.jobs.get(job_id), self.groups.get(job_id.split("/")[1])
        if found and of and found.state == "dead" and not found.discarded and of.state in ("open", "dropped"):
            self.dead_letters.requeue(job_id)
            found.state, found.backoff, found.restart, found.failures, found.reach = "queued", False, True, {}, 0
            if of.state == "dropped":
                of.state = "open"
                self.counts["dropped"] -= sum(self.jobs[m].state == "done" for m in self.members(job_id.split("/")[1]))
            assert job_id in self.reap()
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
            if state.group_state == "acked" and state.job is None:  # only the group's small record is left
                return
            assert state.attempt == found.attempt
            assert state.failures == {name: count for name, count in found.failures.items() if count}

    # --------------------------------------------------------------------------------------------------- and always

    @invariant()
    def the_ledger_agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        stats = self.reader.stats()
        assert {name: stats[name] for name in self.counts} == self.counts
        states = [found.state for found in self.jobs.values()]
        assert {s: stats[s] for s in ("queued", "leased", "done", "dead")} == {
            s: states.count(s) for s in ("queued", "leased", "done", "dead")
        }
        for name in ("open", "ready", "held", "acked", "dropped"):
            assert stats[f"groups_{name}"] == len(self.of_state(name)), name
        assert stats["duplicates"] == 0
        done = [found.reward for found in self.jobs.values() if found.state == "done"]
        assert {name: stats[name] for name in TALLY} == {name: each * len(done) for name, each in TALLY.items()}
        assert stats["stops"] == ({"done": len(done)} if done else {})
        assert stats["reward_mean"] == (pytest.approx(sum(done) / len(done)) if done else None)
        acked = {m for name in self.of_state("acked") for m in self.members(name) if self.jobs[m].state == "done"}
        pipe = self.ledger.redis.pipeline(transaction=False)
        for job_id in self.jobs:
            pipe.lrange(self.ledger.keys.journal(job_id), 0, -1)
        expected = [[] if job_id in acked else found.journal for job_id, found in self.jobs.items()]
        assert pipe.execute() == expected


@pytest.mark.timeout(900)
def test_the_ledger_is_what_the_model_says(redis_url: str) -> None:
    run_machine(LedgerMachine, redis_url, examples=110, steps=50)

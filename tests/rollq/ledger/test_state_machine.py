"""The ledger's scripts against a plain Python model, in random order, on a real Redis.

The model knows no leases in seconds: time passes when a rule makes a lease, a hold or a backoff run out. Redis's clock
is set by moving all that was written by it the other way.
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

from rollq.errors import FailureClass, Fenced, JobConflict, JournalConflict, LedgerError, NotHeld
from rollq.job import Purpose
from rollq.ledger.connection import connect
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import PULSE
from rollq.ledger.ledger import Claim, Ledger
from rollq.ledger.outage import OutageDetector
from rollq.wire.codec import encode_event
from tests.rollq.samples import closed, group, job, observed

NAMES = ["a", "b", "c", "e"]
SIZE, VIABLE = 2, {"a": 1, "b": 2, "c": 1, "e": 1}
PURPOSE = {name: Purpose.EVAL if name == "e" else Purpose.TRAIN for name in NAMES}
BUDGET = {"engine": 5, "user": 5, "worker": 5, "env": 2, "job": 2, "cancelled": 1}
IDS = [f"r/{name}/{sample}" for name in NAMES for sample in range(SIZE)]
OWN = {FailureClass.ENV: 3, FailureClass.WORKER: 2}
TALLY = {"turns": 2, "sampled_tokens": 4, "total_tokens": 11}
tokens = st.sampled_from(["t", "t", "u"])
purposes = st.sampled_from([Purpose.TRAIN, Purpose.TRAIN, Purpose.EVAL])


@dataclass
class ModelJob:
    state: str = "queued"
    attempt: int = 0
    backoff: bool = False
    restart: bool = False
    journal: list[bytes] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    reach: int = 0
    ended: tuple[int, str] = (0, "")
    discarded: bool = False
    reward: float = 0.0


@dataclass
class ModelGroup:
    seq: int
    state: str = "open"
    token: str = ""
    handed: int = 0


class LedgerMachine(RuleBasedStateMachine):
    url = ""

    @initialize(names=st.lists(st.sampled_from(NAMES), min_size=2, unique=True), own=st.booleans())
    def start(self, names: list[str], own: bool) -> None:
        self.ledger = Ledger(connect(self.url), "r")
        self.letters = DeadLetters(self.ledger.redis, "r")
        self.outages = OutageDetector(self.ledger.redis)
        self.ledger.redis.flushdb()
        self.budget = BUDGET | (OWN if own else {})
        self.ledger.fix_budgets(OWN if own else {})
        self.jobs: dict[str, ModelJob] = {}
        self.groups: dict[str, ModelGroup] = {}
        self.sealed = False
        self.counts = dict.fromkeys(["submitted", "done", "fenced", "delivered", "redelivered", "dropped"], 0)
        self.claims = 0
        for name in names:
            self.submit(name, other=False)

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
            viable = states.count("done") >= VIABLE[name]
            self.groups[name].state = "ready" if viable else "dropped"
            self.counts["dropped"] += 0 if viable else states.count("done")
            self.free_the_rest(name)

    def free_the_rest(self, name: str) -> None:
        """Of a dropped group nothing is kept once all its dead members were discarded."""
        members = [self.jobs[member] for member in self.members(name)]
        if self.groups[name].state == "dropped" and all(m.discarded for m in members if m.state == "dead"):
            for member in members:
                member.journal = []

    def calm(self) -> None:
        """Redis was there all the time."""
        self.ledger.redis.hset(PULSE, mapping={"beat": self.ledger.now(), "grace": 0})

    def leases(self) -> list[tuple[str, int]]:
        return [(job_id, self.jobs[job_id].attempt) for job_id in self.of_jobs("leased")]

    def fails(self, job_id: str, failure: str, how: str) -> str:
        found = self.jobs[job_id]
        found.failures[failure] = found.failures.get(failure, 0) + 1
        found.state = "dead" if found.failures[failure] >= self.budget[failure] else "queued"
        found.backoff = found.state == "queued" and how == "fail" and failure in ("engine", "user", "worker")
        found.restart = found.restart or failure not in ("engine", "user", "worker")
        found.ended = (found.attempt, how)
        if found.state == "dead":
            self.settle(job_id)
        return found.state

    def takes_over(self, found: ModelJob, got: Claim) -> None:
        """A new attempt: it goes on with the journal unless the job's own fault wants a fresh start."""
        assert (got.attempt, got.set_aside) == (found.attempt + 1, found.restart and bool(found.journal))
        if found.restart:
            found.journal = []
        assert got.journal == len(found.journal)
        found.state, found.attempt, found.restart = "leased", got.attempt, False

    def of_jobs(self, state: str) -> list[str]:
        return [job_id for job_id, found in self.jobs.items() if found.state == state]

    def of_state(self, *states: str) -> list[str]:
        return sorted((n for n, g in self.groups.items() if g.state in states), key=lambda n: self.groups[n].seq)

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
            assert self.ledger.submit(jobs).known == self.members(name)
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
            assert got.reason == found.state  # type: ignore[union-attr]
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
                self.ledger.append(job_id, found.attempt, index, blob)
        else:
            self.ledger.append(job_id, found.attempt, index, blob)
            found.journal[index:] = [blob]
            if index + 1 > found.reach:
                found.reach = index + 1
                found.failures["worker"] = 0

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data(), failure=st.sampled_from(FailureClass))
    def fail(self, data: st.DataObject, failure: FailureClass) -> None:
        job_id = data.draw(st.sampled_from(self.of_jobs("leased")))
        expected = self.fails(job_id, failure, "fail")
        assert self.ledger.fail(job_id, self.jobs[job_id].attempt, failure, "why").status == expected
        if self.jobs[job_id].backoff:  # longer than this takes on any machine: only a rule ends it
            later = self.ledger.now() + 29
            self.ledger.redis.hset(self.ledger.keys.job(job_id), "not_before", later)
            self.ledger.redis.zadd(self.ledger.keys.queued, {job_id: later})

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        found = self.jobs[job_id := data.draw(st.sampled_from(self.of_jobs("leased")))]
        self.ledger.release(job_id, found.attempt)
        found.state, found.ended = "queued", (found.attempt, "release")

    @rule(data=st.data(), stale=st.integers(0, 1))
    def write_without_a_lease(self, data: st.DataObject, stale: int) -> None:
        """Only the attempt that ended the job itself may say so again."""
        job_id = data.draw(st.sampled_from(IDS))
        found = self.jobs.get(job_id, ModelJob())
        attempt = found.attempt - stale
        if found.state == "leased" and not stale:
            return
        writes = {
            "append": lambda: self.ledger.append(job_id, attempt, 0, b"x"),
            "complete": lambda: self.ledger.complete(job_id, attempt, 0, encode_event(closed(), job_id)),
            "fail": lambda: self.ledger.fail(job_id, attempt, FailureClass.ENV, "why"),
            "release": lambda: self.ledger.release(job_id, attempt),
        }
        for how, write in writes.items():
            if found.ended == (attempt, how):
                write()
            else:
                self.counts["fenced"] += 1
                with pytest.raises(Fenced):
                    write()

    @precondition(lambda self: self.of_state("open"))
    @rule(data=st.data(), cancel=st.sampled_from([-1, -1, -1, 0, 1]))
    def end_a_group(self, data: st.DataObject, cancel: int) -> None:
        """Whatever is left of its members is completed, or cancelled."""
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
                self.ledger.fail(job_id, found.attempt, FailureClass.CANCELLED, "why")
                self.fails(job_id, "cancelled", "fail")
            elif found.state == "leased":
                found.reward = sample + 0.3
                blob = encode_event(closed(found.reward), job_id)
                for _ in range(2):
                    self.ledger.complete(job_id, found.attempt, len(found.journal), blob, **TALLY)
                found.journal.append(blob)
                found.state, found.ended = "done", (found.attempt, "complete")
                self.counts["done"] += 1
                self.settle(job_id)

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data(), after_an_outage=st.booleans())
    def leases_run_out(self, data: st.DataObject, after_an_outage: bool) -> None:
        leased = self.of_jobs("leased")
        chosen = data.draw(st.lists(st.sampled_from(leased), min_size=1, unique=True))
        for job_id in chosen:
            self.ledger.redis.zadd(self.ledger.keys.leased, {f"{job_id}#{self.jobs[job_id].attempt}": 1}, xx=True)
        self.calm()
        if after_an_outage:
            self.ledger.redis.hset(PULSE, "beat", self.ledger.now() - 6)
            assert not set(self.ledger.reap(expire_until=self.outages.stamp())) & set(leased)
            assert self.ledger.renew(self.leases()) == []
            return
        expected = {job_id for job_id in chosen if self.fails(job_id, "worker", "expiry") == "queued"}
        # What runs out is due at once; released and freshly failed ones may be due as well.
        assert expected <= set(self.ledger.reap(expire_until=self.outages.stamp()))

    @rule(by=st.sampled_from([-7200.0, -100.0, 100.0, 7200.0]))
    def redis_is_set_another_time(self, by: float) -> None:
        """No lease is lost, and nobody waits any longer."""
        redis, keys = self.ledger.redis, self.ledger.keys
        self.calm()
        for key in (keys.queued, keys.leased, *(keys.held(purpose) for purpose in Purpose)):
            times = {member: at - by for member, at in redis.zrange(key, 0, -1, withscores=True) if at > 0}
            if times:
                redis.zadd(key, times)
        for job_id, found in self.jobs.items():
            for name in ("not_before", "deadline"):
                if at := float(redis.hget(keys.job(job_id), name) or 0):
                    redis.hset(keys.job(job_id), name, at - by)
            found.backoff = False
        for purpose in Purpose:
            if heard := float(redis.hget(keys.meta, f"heard:{purpose}") or 0):
                redis.hset(keys.meta, f"heard:{purpose}", heard - by)
        redis.hset(PULSE, "beat", self.ledger.now() - by)
        due = self.ledger.reap(expire_until=self.outages.stamp())
        assert set(due) <= set(self.of_jobs("queued"))
        if abs(by) > 1000:
            assert set(due) == set(self.of_jobs("queued"))
        before = self.ledger.now()
        assert self.ledger.renew(self.leases()) == []
        ends = [redis.zscore(keys.leased, f"{job_id}#{attempt}") for job_id, attempt in self.leases()]
        assert all(before + 15 <= end <= self.ledger.now() + 15 for end in ends)
        for name in self.of_state("held"):
            self.ledger.extend(self.groups[name].token)

    @precondition(lambda self: any(found.backoff for found in self.jobs.values()))
    @rule(data=st.data())
    def a_backoff_runs_out(self, data: st.DataObject) -> None:
        self.forget_backoff(data.draw(st.sampled_from([job_id for job_id, j in self.jobs.items() if j.backoff])))

    def forget_backoff(self, job_id: str) -> None:
        self.jobs[job_id].backoff = False
        self.ledger.redis.hset(self.ledger.keys.job(job_id), "not_before", 0)

    @rule()
    def publish(self) -> None:
        due = self.ledger.reap(broker_empty=True)
        assert all(self.jobs[job_id].state == "queued" for job_id in due)
        self.ledger.confirm(due)

    @rule(data=st.data())
    def bounce(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "queued")
        self.ledger.bounce(job_id)
        if job_id in self.jobs and self.jobs[job_id].state == "queued" and not self.jobs[job_id].backoff:
            assert job_id in self.ledger.reap()

    @precondition(lambda self: self.of_state("ready", "held", "acked"))
    @rule(token=tokens, groups=st.sampled_from([1, 1, 2, 3]), purpose=purposes)
    def take(self, token: str, groups: int, purpose: Purpose) -> None:
        token = f"{token}-{purpose}"
        there = [name for name in self.of_state("ready") if PURPOSE[name] is purpose]
        mine = [name for name in self.of_state("held") if self.groups[name].token == token]
        expected = mine or there[:groups]
        more = [name for name in self.of_state("open") if PURPOSE[name] is purpose]
        if not mine and len(expected) < groups and (more or not self.sealed):
            expected = []
        taken = self.ledger.take(groups, token, purpose=purpose)
        assert [g.id for g in taken] == expected
        for got in taken:
            assert got.members == [m for m in self.members(got.id) if self.jobs[m].state == "done"]
            assert got.dead == [m for m in self.members(got.id) if self.jobs[m].state == "dead"]
        if not mine:
            for name in expected:
                found = self.groups[name]
                self.counts["redelivered"] += found.handed > 0
                found.state, found.token, found.handed = "held", token, found.handed + 1

    @precondition(lambda self: self.of_state("held"))
    @rule(data=st.data(), groups=st.integers(1, 2))
    def a_hold_runs_out(self, data: st.DataObject, groups: int) -> None:
        found = data.draw(st.sampled_from(self.of_state("held")))
        lost, purpose = self.groups[found].token, PURPOSE[found]
        for name in self.of_state("held"):
            if self.groups[name].token == lost:
                self.ledger.redis.zadd(self.ledger.keys.held(purpose), {name: 1}, xx=True)
                self.groups[name].state = "ready"
        self.claims += 1
        self.take(f"v{self.claims}", groups, purpose)  # only a taker of another batch finds out

    @precondition(lambda self: self.of_state("held", "acked"))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        known = self.of_state("held", "acked")
        token = data.draw(st.sampled_from([self.groups[name].token for name in known] * 3 + ["t-train", "u-eval"]))
        mine = [name for name in known if self.groups[name].token == token]
        names = data.draw(st.lists(st.sampled_from(mine * 3 + known), min_size=1, max_size=3, unique=True))
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

    @precondition(lambda self: any(m.state == "done" for n in self.of_state("held") for m in self.played(n)))
    @rule(data=st.data())
    def condemn(self, data: st.DataObject) -> None:
        """A consumer cannot read a member: it is dead, and all that the consumer held goes back."""
        held = [m for name in self.of_state("held") for m in self.members(name) if self.jobs[m].state == "done"]
        job_id = data.draw(st.sampled_from(held))
        name = job_id.split("/")[1]
        token = self.groups[name].token
        for _ in range(2):
            self.ledger.condemn(token, job_id, "torn")
        found = self.jobs[job_id]
        found.state, found.failures["job"], found.ended = "dead", found.failures.get("job", 0) + 1, (0, "damage")
        self.counts["done"] -= 1
        for other in self.of_state("held"):
            if self.groups[other].token == token:
                self.groups[other].state = "ready"
                self.groups[other].handed -= 1
        self.settle(job_id)

    @precondition(lambda self: self.of_state("held") and not self.sealed)
    @rule(purpose=purposes, seconds=st.sampled_from([6.0, 600.0]))
    def holds_run_out_in_an_outage(self, purpose: Purpose, seconds: float) -> None:
        """Nobody could renew them: whoever asks first gets none of them, and they are renewed."""
        redis, held = self.ledger.redis, self.ledger.keys.held(purpose)
        mine = [name for name in self.of_state("held") if PURPOSE[name] is purpose]
        if not mine:
            return
        redis.hset(self.ledger.keys.meta, f"heard:{purpose}", self.ledger.now() - seconds)
        redis.zadd(held, dict.fromkeys(mine, self.ledger.now() - 1), xx=True)
        assert self.ledger.take(len(NAMES) + 1, "early", purpose=purpose) == []
        for name in mine:
            self.ledger.extend(self.groups[name].token)

    def played(self, name: str) -> list[ModelJob]:
        return [self.jobs[member] for member in self.members(name)]

    @rule(token=tokens, purpose=purposes)
    def extend(self, token: str, purpose: Purpose) -> None:
        token = f"{token}-{purpose}"
        if any(self.groups[name].token == token for name in self.of_state("held")):
            self.ledger.extend(token)
        else:
            with pytest.raises(NotHeld):
                self.ledger.extend(token)

    @precondition(lambda self: self.of_jobs("queued") or self.of_jobs("leased"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = self.pick(data, data.draw(st.sampled_from(["queued", "leased"])))
        found = self.jobs.get(job_id)
        if found and found.state in ("queued", "leased"):
            self.fails(job_id, "cancelled", "cancel")
            for _ in range(2):
                self.letters.cancel(job_id)
        elif found is None or found.state == "done":
            with pytest.raises(LedgerError):
                self.letters.cancel(job_id)

    @precondition(lambda self: self.of_jobs("dead"))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "dead")
        found, of = self.jobs.get(job_id), self.groups.get(job_id.split("/")[1])
        if found and of and found.state == "dead" and not found.discarded and of.state in ("open", "dropped"):
            self.letters.requeue(job_id)
            found.state, found.backoff, found.restart, found.failures, found.reach = "queued", False, True, {}, 0
            if of.state == "dropped":
                of.state = "open"
                self.counts["dropped"] -= sum(self.jobs[m].state == "done" for m in self.members(job_id.split("/")[1]))
            assert job_id in self.ledger.reap()
        else:
            with pytest.raises(LedgerError):
                self.letters.requeue(job_id)

    @precondition(lambda self: self.of_jobs("dead"))
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "dead")
        found = self.jobs.get(job_id)
        if found is None or found.state != "dead":
            with pytest.raises(LedgerError):
                self.letters.discard(job_id)
            return
        self.letters.discard(job_id)
        found.discarded, found.journal = True, []
        self.free_the_rest(job_id.split("/")[1])

    @rule(data=st.data(), junk=st.booleans())
    def an_index_is_damaged(self, data: st.DataObject, junk: bool) -> None:
        """What the records know is found again; what only the totals knew is not."""
        keys, redis = self.ledger.keys, self.ledger.redis
        groups = [of(purpose) for of in (keys.open, keys.ready, keys.held) for purpose in Purpose]
        key = data.draw(st.sampled_from([keys.queued, keys.leased, keys.dead, keys.count, *groups]))
        if junk and key != keys.count:
            redis.zadd(key, {"junk": 1e12, "r/a/7#1": 1e12, "other/a/0": 1e12, b"\xff": 1e12})
        elif junk:
            redis.hset(key, mapping=dict.fromkeys(("submitted", "done", "turns", "groups"), 1000))
        else:
            redis.delete(key)
            redis.set(key, "garbage")
        if key == keys.count and not junk:
            self.counts |= {"fenced": 0, "redelivered": 0}
        redis.hdel(keys.meta, "mended")
        self.ledger.mend()
        redis.hdel(keys.meta, "mended")
        assert self.ledger.mend() == 0

    @precondition(lambda self: len(self.groups) > 2)
    @rule()
    def seal(self) -> None:
        self.ledger.seal()
        self.sealed = True

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        job_id = self.pick(data, "queued")
        state, found = self.ledger.job(job_id), self.jobs.get(job_id)
        if state is None or found is None:
            assert state is found is None
        else:
            assert (state.state, state.attempt) == (found.state, found.attempt)
            assert state.failures == {name: count for name, count in found.failures.items() if count}

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
        assert self.ledger.balance().sound
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
    class Machine(LedgerMachine):
        url = redis_url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=110,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            print_blob=False,
        ),
    )

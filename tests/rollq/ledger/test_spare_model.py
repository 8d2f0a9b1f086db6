"""Over-provisioned groups in random order, against a model: members end, die, are cancelled and come back, trainers
take and reject. What is handed out has `size` graded members, and every job ends once."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rollq.errors import FailureClass, Fenced, LedgerError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.servers.connection import connect
from tests.rollq.groups import ack, deliveries, take
from tests.rollq.ledger.machines import run_machine
from tests.rollq.samples import claim, group, play

SHAPES = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
"""Size, spare members, fewest viable ones."""


class SpareMachine(RuleBasedStateMachine):
    url: str

    @initialize(shapes=st.lists(SHAPES, min_size=1, max_size=4))
    def start(self, shapes: list[tuple[int, int, int]]) -> None:
        self.ledger = Ledger(connect(self.url), "r")
        self.ledger.redis.flushdb()
        self.letters, self.reader = DeadLetters(self.ledger.redis, "r"), LedgerReader(self.ledger.redis, "r")
        self.shapes = {f"g{i}": (size, spare, min(viable, size)) for i, (size, spare, viable) in enumerate(shapes)}
        self.jobs: dict[str, str] = {}
        self.groups = dict.fromkeys(self.shapes, "open")
        self.leases: dict[str, str] = {}
        self.takes, self.rejected = 0, set[str]()
        for name, (size, spare, viable) in self.shapes.items():
            jobs = group(name, size, spare=spare, min_viable=viable)
            self.ledger.submit(jobs)
            self.jobs |= {job.id: "queued" for job in jobs}

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.redis.close()

    def members(self, name: str, *states: str) -> list[str]:
        return [job_id for job_id, state in self.jobs.items() if job_id.split("/")[1] == name and state in states]

    def of(self, *states: str) -> list[str]:
        return [job_id for job_id, state in self.jobs.items() if state in states]

    def settle(self, name: str) -> None:
        size, _, viable = self.shapes[name]
        done = len(self.members(name, "done"))
        if done < size and self.members(name, "queued", "leased"):
            return
        for job_id in self.members(name, "queued", "leased"):
            self.jobs[job_id] = "surplus"
        self.groups[name] = "ready" if done >= viable else "dropped"

    def end(self, job_id: str, state: str) -> None:
        self.jobs[job_id] = state
        self.settle(job_id.split("/")[1])

    @precondition(lambda self: self.of("queued"))
    @rule(data=st.data())
    def start_a_member(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.of("queued")))
        self.leases[job_id] = claim(self.ledger, job_id).lease
        self.jobs[job_id] = "leased"

    @precondition(lambda self: self.of("queued"))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.of("queued")))
        self.leases[job_id] = play(self.ledger, job_id)
        self.end(job_id, "done")

    @precondition(lambda self: self.of("leased"))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.of("leased")))
        for _ in range(2):  # a lost reply
            self.ledger.fail(job_id, self.leases[job_id], FailureClass.ENV, "broken", final=True)
        self.end(job_id, "dead")

    @precondition(lambda self: self.of("queued", "leased"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.of("queued", "leased")))
        self.letters.cancel(job_id)
        self.end(job_id, "dead")

    @rule(data=st.data())
    def cancel_a_group(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.shapes)))
        unfinished = self.members(name, "queued", "leased")
        assert self.letters.cancel_group(name) == len(unfinished)
        for job_id in unfinished:
            self.end(job_id, "dead")

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        name = job_id.split("/")[1]
        if self.jobs[job_id] == "dead" and self.groups[name] in ("open", "dropped"):
            self.letters.requeue(job_id)
            self.jobs[job_id], self.groups[name] = "queued", "open"
        else:
            with pytest.raises(LedgerError):
                self.letters.requeue(job_id)

    @precondition(lambda self: self.of("surplus"))
    @rule(data=st.data())
    def a_surplus_member_changes_nothing(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.of("surplus")))
        refused = self.ledger.claim(job_id, worker="w", token="late")
        assert refused.reason == "surplus"  # type: ignore[union-attr]
        if job_id in self.leases:
            with pytest.raises(Fenced):
                self.ledger.append(job_id, self.leases[job_id], 0, [b"header"])

    @precondition(lambda self: "ready" in self.groups.values())
    @rule(rejects=st.sampled_from([False, False, True]))
    def take(self, rejects: bool) -> None:
        self.takes += 1
        (taken,) = take(self.ledger, 1, f"t/{self.takes}")
        size, _, viable = self.shapes[taken.id]
        assert (taken.size, taken.members) == (size, self.members(taken.id, "done"))
        assert viable <= len(taken.members) <= size
        # Only what the trainer rejected is missing: no surplus member comes back for it.
        assert len(taken.members) == size or not self.members(taken.id, "surplus") or taken.id in self.rejected
        assert taken.dead == self.members(taken.id, "dead")
        if rejects:
            self.rejected.add(taken.id)
            deliveries(self.ledger).reject(f"t/{self.takes}", taken.members[0], "torn")
            self.end(taken.members[0], "dead")
        else:
            ack(self.ledger, f"t/{self.takes}", taken.id)
            self.groups[taken.id] = "acked"

    @invariant()
    def the_ledger_agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.reader.group_states(list(self.groups)) == list(self.groups.values())
        stats = self.reader.stats()
        for state in ("queued", "leased", "done", "dead", "surplus"):
            assert stats[state] == len(self.of(state)), state
        assert stats["submitted"] == len(self.jobs)
        graded = {name: len(self.members(name, "done")) for name in self.groups}
        for state, count in (("acked", "delivered"), ("dropped", "dropped")):
            assert stats[count] == sum(graded[name] for name, found in self.groups.items() if found == state)
        for job_id in self.of("surplus"):
            assert not self.ledger.redis.exists(self.ledger.keys.journal(job_id))


@pytest.mark.timeout(900)
def test_groups_with_spare_members_are_what_the_model_says(redis_url: str) -> None:
    run_machine(SpareMachine, redis_url, examples=150)

"""The rules of the state machine that hand groups out: take, extend, acknowledge, reject, and holds
that run out.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rollq.errors import NotHeld
from rollq.job import Purpose
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import ack, deliveries, take
from tests.rollq.ledger.model import PURPOSE, Model, ModelJob

tokens = st.sampled_from(["t", "t", "u"])
purposes = st.sampled_from([Purpose.TRAIN, Purpose.TRAIN, Purpose.EVAL])


class DeliveryRules(Model, RuleBasedStateMachine):
    ledger: Ledger

    @precondition(lambda self: self.of_state("ready", "held", "acked"))
    @rule(token=tokens, groups=st.sampled_from([1, 1, 2, 3]), purpose=purposes)
    def take(self, token: str, groups: int, purpose: Purpose) -> None:
        token = f"{token}-{purpose}"
        there = [name for name in self.of_state("ready") if PURPOSE[name] is purpose]
        mine = [name for name in self.of_state("held") if self.groups[name].token == token]
        expected = mine or there[:groups]
        more = [name for name in self.of_state("open") if PURPOSE[name] is purpose]
        # They may come back.
        others = [name for name in self.of_state("held") if PURPOSE[name] is purpose]
        if not mine and len(expected) < groups and (more or others or not self.sealed):
            expected = []
        taken = take(self.ledger, groups, token, purpose=purpose)
        assert [g.id for g in taken] == expected
        for got in taken:
            assert got.size == self.shapes[got.id].size
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
                self.ledger.redis.zadd(
                    f"{self.ledger.keys.prefix}held:{purpose}", {name: 1}, xx=True
                )
                self.groups[name].state = "ready"
        self.claims += 1
        self.take(f"v{self.claims}", groups, purpose)  # only a taker of another batch finds out

    @precondition(lambda self: self.of_state("held", "acked"))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        known = self.of_state("held", "acked")
        token = data.draw(
            st.sampled_from([self.groups[name].token for name in known] * 3 + ["t-train", "u-eval"])
        )
        mine = [name for name in known if self.groups[name].token == token]
        names = data.draw(
            st.lists(st.sampled_from(mine * 3 + known), min_size=1, max_size=3, unique=True)
        )
        if all(self.groups[name].token == token for name in names):
            ack(self.ledger, token, *names)
            for name in names:
                if self.groups[name].state == "held":
                    self.groups[name].state = "acked"  # one record is left, and the dead members
                    self.counts["delivered"] += sum(
                        self.jobs[m].state == "done" for m in self.members(name)
                    )
        else:
            with pytest.raises(NotHeld):
                ack(self.ledger, token, *names)

    @precondition(
        lambda self: any(m.state == "done" for n in self.of_state("held") for m in self.played(n))
    )
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        """A consumer cannot read a member: it is dead, and all that the consumer held goes back."""
        held = [
            m
            for name in self.of_state("held")
            for m in self.members(name)
            if self.jobs[m].state == "done"
        ]
        job_id = data.draw(st.sampled_from(held))
        name = job_id.split("/")[1]
        token = self.groups[name].token
        for _ in range(2):
            deliveries(self.ledger).reject(token, job_id, "torn")
        found = self.jobs[job_id]
        found.state, found.failures["job"], found.ended = (
            "dead",
            found.failures.get("job", 0) + 1,
            (0, "damage"),
        )
        self.counts["done"] -= 1
        for other in self.of_state("held"):
            if self.groups[other].token == token:
                self.groups[other].state = "ready"
                self.groups[other].handed -= 1
        self.settle(job_id)

    def played(self, name: str) -> list[ModelJob]:
        return [self.jobs[member] for member in self.members(name)]

    @rule(token=tokens, purpose=purposes)
    def extend(self, token: str, purpose: Purpose) -> None:
        token = f"{token}-{purpose}"
        held = any(self.groups[name].token == token for name in self.of_state("held"))
        assert deliveries(self.ledger).renew_holds([token], purpose=purpose) == (
            [] if held else [token]
        )

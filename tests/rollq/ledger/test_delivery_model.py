"""Random consumers against a model: they take, acknowledge, skip and reject, die, come back under
their name, and lose holds. Every group is delivered until it is acknowledged, and acknowledged
once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rollq.errors import NotHeld
from rollq.job import Purpose
from rollq.ledger.deliveries import Deliveries, named_session
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.servers.connection import connect
from tests.rollq.groups import end_holds, play_groups
from tests.rollq.ledger.machines import run_machine
from tests.rollq.samples import group

CONSUMERS = st.sampled_from(["@trainer", "@trainer", "@trainer", "@other", "x", "y"])
"""Those with @ have a name."""


@dataclass
class Hold:
    groups: list[str]
    expired: bool = False


@dataclass
class ModelConsumer:
    session: str
    owner: str = ""
    next: int = 0
    holds: dict[int, Hold] = field(default_factory=dict)
    """Unacknowledged batches, by step."""
    takeover: list[int] = field(default_factory=list)
    """Steps that a new process has not seen yet."""
    acked: int = -1

    def token(self, step: int) -> str:
        return f"{self.session}/{step}"


class DeliveryMachine(RuleBasedStateMachine):
    url: str

    @initialize(groups=st.integers(3, 12))
    def start(self, groups: int) -> None:
        client = connect(self.url)
        client.flushall()
        self.ledger, self.deliveries = Ledger(client, "r"), Deliveries(client, "r")
        self.reader = LedgerReader(client, "r")
        self.names = [f"g{number:02}" for number in range(groups)]
        for name in self.names:
            self.ledger.submit(group(name, 1))
        self.open, self.ready = list(self.names), list[str]()
        self.acked: dict[str, int] = {}
        self.skipped: list[str] = []
        self.sealed = False
        self.processes = 0
        self.consumers: dict[str, ModelConsumer] = {}

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.redis.close()

    def consumer(self, name: str) -> ModelConsumer:
        return self.consumers.get(name) or self.begin(name)

    def begin(self, name: str, step: int | None = None) -> ModelConsumer:
        """A process starts to consume under this name; it replaces the one before."""
        self.processes += 1
        before = self.consumers.get(name)
        if not name.startswith("@"):
            # The holds of the one before stay until they run out.
            self.consumers[f"dead {self.processes}"] = before or ModelConsumer("nobody")
            self.consumers[name] = ModelConsumer(f"{name}{self.processes}")
            return self.consumers[name]
        opened = self.deliveries.open(name[1:], Purpose.TRAIN, f"p{self.processes}", step=step)
        before = before or ModelConsumer(named_session(Purpose.TRAIN, name[1:]))
        now = ModelConsumer(
            before.session, opened.owner, opened.next, dict(before.holds), acked=before.acked
        )
        assert list(opened.steps) == sorted(now.holds)  # in order, with the same batch boundaries
        assert opened.next >= before.next
        now.takeover = sorted(now.holds)
        for hold in now.holds.values():
            hold.expired = False
        self.consumers[name] = now
        return now

    def run_out(self) -> None:
        """Whoever asks gives back what ran out."""
        for consumer in self.consumers.values():
            for step in [step for step, hold in consumer.holds.items() if hold.expired]:
                self.ready = sorted(self.ready + consumer.holds.pop(step).groups)

    # ----------------------------------------------------------------
    # the rules

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def groups_finish(self, data: st.DataObject) -> None:
        self.finish(
            data.draw(st.lists(st.sampled_from(self.open), min_size=1, max_size=4, unique=True))
        )

    @precondition(lambda self: not self.sealed)
    @rule(all_finish=st.booleans())
    def the_producer_ends(self, all_finish: bool) -> None:
        self.ledger.seal()
        self.sealed = True
        if all_finish:
            self.finish(list(self.open))

    def finish(self, names: list[str]) -> None:
        play_groups(self.ledger, *names, size=1)
        self.open = [name for name in self.open if name not in names]
        self.ready = sorted([*self.ready, *names])

    @rule(name=CONSUMERS, groups=st.sampled_from([1, 1, 2, 3]), ordered=st.booleans())
    def take(self, name: str, groups: int, ordered: bool) -> None:
        me = self.consumer(name)
        if me.takeover:
            self.take_over(me)
            return
        taken = self.deliveries.take(groups, me.token(me.next), owner=me.owner, ordered=ordered)
        self.run_out()
        there = [n for n in self.ready if not (ordered and self.open and n > min(self.open))]
        others = [
            hold
            for other in self.consumers.values()
            if other is not me
            for hold in other.holds.values()
        ]
        short = self.sealed and not self.open and not others
        expected = there[:groups] if len(there) >= groups or short else []
        assert [found.id for found in taken.groups] == expected
        if expected:
            self.ready = [n for n in self.ready if n not in expected]
            me.holds[me.next] = Hold(expected)
            me.next += 1
        elif taken.over:
            assert self.sealed
            assert not (self.open or self.ready or others)

    def take_over(self, me: ModelConsumer) -> None:
        step = me.takeover.pop(0)
        taken = self.deliveries.take(9, me.token(step), owner=me.owner, again=True)
        hold = me.holds.get(step)
        if hold:
            hold.expired = False
        else:
            self.run_out()  # it asked, and got nothing
        assert [found.id for found in taken.groups] == (hold.groups if hold else [])

    def held(self) -> list[tuple[ModelConsumer, int]]:
        return [(consumer, step) for consumer in self.consumers.values() for step in consumer.holds]

    @precondition(lambda self: hasattr(self, "consumers") and self.held())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        me, step = self.held()[data.draw(st.integers(0, len(self.held()) - 1))]
        for _ in range(2):
            self.deliveries.ack(me.token(step), me.holds[step].groups, owner=me.owner)
        for name in me.holds.pop(step).groups:
            self.acked[name] = self.acked.get(name, 0) + 1
        me.acked = max(me.acked, step)

    @precondition(lambda self: hasattr(self, "consumers") and self.held())
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        me, step = self.held()[data.draw(st.integers(0, len(self.held()) - 1))]
        name = data.draw(st.sampled_from(me.holds[step].groups))
        for _ in range(2):
            self.deliveries.skip(me.token(step), name, "why not", owner=me.owner)
        self.skipped.append(name)
        me.holds[step].groups.remove(name)
        if not me.holds[step].groups:
            del me.holds[step]

    @precondition(lambda self: hasattr(self, "consumers") and self.held())
    @rule(data=st.data())
    def a_hold_runs_out(self, data: st.DataObject) -> None:
        me, step = self.held()[data.draw(st.integers(0, len(self.held()) - 1))]
        end_holds(self.ledger, *me.holds[step].groups)
        me.holds[step].expired = True

    @precondition(lambda self: hasattr(self, "consumers") and self.consumers)
    @rule(name=CONSUMERS)
    def a_process_dies_and_another_starts(self, name: str) -> None:
        self.begin(name)

    @precondition(lambda self: hasattr(self, "consumers") and self.consumers.get("@trainer"))
    @rule(data=st.data())
    def a_trainer_restarts_from_a_checkpoint(self, data: st.DataObject) -> None:
        before = self.consumers["@trainer"]
        step = data.draw(st.integers(max(before.acked, 0), before.next + 1))
        now = self.begin("@trainer", step)
        for done in [done for done in sorted(now.holds) if done <= step]:
            self.deliveries.ack(now.token(done), owner=now.owner)
            for name in now.holds.pop(done).groups:
                self.acked[name] = self.acked.get(name, 0) + 1
            now.takeover.remove(done)
            now.acked = max(now.acked, done)
        now.next = max(now.next, step + 1)

    @precondition(
        lambda self: hasattr(self, "consumers") and any(n.startswith("@") for n in self.consumers)
    )
    @rule(data=st.data())
    def a_fenced_process_changes_nothing(self, data: st.DataObject) -> None:
        me = self.consumers[
            data.draw(st.sampled_from([n for n in self.consumers if n.startswith("@")]))
        ]
        before, owner = self.reader.stats(), "0#older"
        token = me.token(random.choice([*me.holds, me.next]))
        assert self.deliveries.renew_holds([token], owner=owner) == [token]
        for act in (
            lambda: self.deliveries.take(1, token, owner=owner),
            lambda: self.deliveries.ack(token, owner=owner),
            lambda: self.deliveries.reject(token, "r/g00/0", "torn", owner=owner),
        ):
            with pytest.raises(NotHeld):
                act()
        assert self.reader.stats() == before

    @invariant()
    def nothing_is_lost_and_nothing_comes_twice(self) -> None:
        if not hasattr(self, "consumers"):
            return
        held = [name for me, step in self.held() for name in me.holds[step].groups]
        everywhere = sorted([*self.open, *self.ready, *held, *self.acked, *self.skipped])
        assert everywhere == self.names
        assert set(self.acked.values()) <= {1}
        stats = self.reader.stats()
        counts = [
            stats[f"groups_{place}"] for place in ("open", "ready", "held", "acked", "skipped")
        ]
        assert counts == [
            len(self.open),
            len(self.ready),
            len(held),
            len(self.acked),
            len(self.skipped),
        ]
        assert (stats["delivered"], stats["skipped"]) == (len(self.acked), len(self.skipped))


@pytest.mark.timeout(900)
def test_deliveries_are_what_the_model_says(redis_url: str) -> None:
    run_machine(DeliveryMachine, redis_url, examples=80)

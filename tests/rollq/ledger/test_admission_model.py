"""Random trainers, producers and workers under admission: no batch is older than the bound, and
nothing waits for ever.

Workers fail, engines are restarted with old weights, miss updates and get them late, groups are
dropped, trainers skip groups, die, come back at a checkpoint and publish. The first machine's
trainer does as the documentation says: for it admission alone holds the bound. The second one's
consumers die without a name, publish what they like, and lose holds.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.deliveries import Deliveries, Taken, named_session
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Claim
from rollq.ledger.versions import Versions
from rollq.servers.connection import connect
from rollq.trajectory import Header
from rollq.wire.codec import encode_header
from rollq.wire.events import encode_event
from tests.rollq.groups import end_holds
from tests.rollq.ledger.machines import run_machine
from tests.rollq.samples import closed, group, observed, prompt, sampled

MOST = 40
"""More groups than a trial needs."""


ENDS = ["done", "done", "done", "leased", "leased", "released", "env", "cancel"]


class Bounded(RuleBasedStateMachine):
    """Producers and workers, and what every taken batch must be."""

    url: str

    @initialize(
        batch=st.integers(1, 3),
        bound=st.sampled_from([0, 0, 1, 1, 3]),
        running=st.sampled_from([None, None, 2]),
        first=st.sampled_from([0, 0, 1000]),
    )
    def start(self, batch: int, bound: int, running: int | None, first: int) -> None:
        client = connect(self.url)
        client.flushall()
        self.ledgers = [Ledger(client, "r"), Ledger(connect(self.url), "r")]
        self.ledger, self.deliveries = self.ledgers[0], Deliveries(client, "r")
        self.versions, self.reader = Versions(client, "r"), LedgerReader(client, "r")
        self.batch, self.bound = batch, bound
        self.versions.limit_staleness(batch, bound, running)
        self.calls, self.submitted = 0, 0
        self.running = running
        self.let_go = 0
        """Groups that were skipped or lost from their hold since the last publication."""
        self.began: dict[str, int] = {}
        """The published step at a group's first claim, or to which the trainer went back while the
        group was open: no token of it is older.
        """
        self.leases: dict[str, Claim] = {}
        self.sampled: dict[str, int] = {}
        """The step of the weights that sampled a finished group."""
        self.engines = [first, first]
        """The steps of the weights that they serve; -1: those that they were started with."""
        self.step = first
        """The published one. A run may begin at a late step."""
        self.begin()

    def begin(self) -> None:
        """What the trainers of the machine need. They publish the first step."""

    def teardown(self) -> None:
        if hasattr(self, "ledgers"):
            for ledger in self.ledgers:
                ledger.redis.close()

    def token(self, what: str) -> str:
        self.calls += 1
        return f"{what}{self.calls}"

    def publish(self, step: int) -> None:
        token = self.token("p")
        for _ in range(2):
            self.versions.publish(step, str(step), token)
        self.let_go = 0
        for name in set(self.unfinished()) & set(self.began):
            self.began[name] = min(self.began[name], step)
        self.step = step

    def taken(self, groups: int, token: str, **how: object) -> Taken:
        """Groups of a batch, none of which is too old."""
        while (found := self.deliveries.take(groups, token, **how)).unread:  # type: ignore[arg-type]
            pass
        assert found.policy_step == self.step
        assert len(found.groups) <= self.batch
        for got in found.groups:
            assert got.started == self.began[got.id]
        return found

    @precondition(lambda self: hasattr(self, "began"))
    @rule(engine=st.integers(0, 1), how=st.sampled_from(["restarted", "updated", "updated"]))
    def engine_changes(self, engine: int, how: str) -> None:
        self.engines[engine] = -1 if how == "restarted" else self.step

    @precondition(lambda self: hasattr(self, "began"))
    @rule(producer=st.integers(0, 1), groups=st.integers(1, 8))
    def producer_submits(self, producer: int, groups: int) -> None:
        for _ in range(groups):
            if (
                self.submitted >= MOST
                or self.ledgers[producer].submit(group(f"g{self.submitted:02}", 1)).full
            ):
                return
            self.submitted += 1
            self.check_room()

    def check_room(self) -> None:
        """A published step has used its batches. What waits for the next ones fills at most those
        of the bound and the present one.
        """
        counts = self.reader.stats()
        waiting = counts["groups_open"] + counts["groups_ready"]
        assert waiting <= self.batch * (self.bound + 1) + self.let_go
        assert self.running is None or counts["groups_open"] <= self.running

    def unfinished(self) -> list[str]:
        return DeadLetters(self.ledger.redis, "r").open_groups()

    @precondition(lambda self: hasattr(self, "began") and self.unfinished())
    @rule(data=st.data(), end=st.sampled_from(ENDS))
    def worker_plays(self, data: st.DataObject, end: str) -> None:
        self.play(data.draw(st.sampled_from(self.unfinished())), end)

    def play(self, name: str, end: str) -> None:
        """A step in a group's life: its job is claimed, and ends in that way or goes on being
        played.
        """
        job_id = f"r/{name}/0"
        if end == "cancel":
            self.leases.pop(name, None)
            DeadLetters(self.ledger.redis, "r").cancel_group(name)
            return
        if name not in self.leases:
            got = self.ledger.claim(job_id, worker="w", token=self.token("c"))
            assert isinstance(got, Claim)
            assert got.oldest_step == self.step
            self.leases[name] = got
            self.began.setdefault(name, self.step)
        if end == "leased":
            return
        oldest = self.leases[name].oldest_step
        assert oldest is not None
        fresh = [step for step in self.engines if self.versions.is_fresh(str(step), oldest)]
        if end == "done" and not fresh:
            return  # the worker waits
        lease = self.leases.pop(name).lease
        if end == "released":
            self.ledger.release(job_id, lease)
        elif end == "env":
            self.ledger.fail(job_id, lease, FailureClass.ENV, "it broke")
        else:
            self.sampled[name] = fresh[0]
            events = [prompt(), sampled(0, version=str(fresh[0])), observed(0, done=True), closed()]
            blobs = [
                encode_header(Header(attempt=1)),
                *(encode_event(event, job_id) for event in events),
            ]
            self.ledger.complete(job_id, lease, 0, blobs)

    def all_play(self) -> None:
        """Producers and workers do what they can."""
        self.engines = [self.step, -1]
        before = -1
        while before < self.submitted:
            before = self.submitted
            self.producer_submits(0, MOST)
            for name in self.unfinished():
                self.play(name, "done")

    def goes_on(self, take: object) -> None:
        """From here on nothing fails: every step gets its whole batch, at once."""
        for _ in range(3):
            self.all_play()
            if self.submitted >= MOST:
                return
            take()  # type: ignore[operator]


class TrainerByTheBook(Bounded):
    """One trainer with a name. It takes a batch, may skip groups of it, trains, publishes, and
    acknowledges at checkpoints. It dies anywhere, and its successor begins at the checkpoint.
    """

    def begin(self) -> None:
        self.saved = self.step - 1
        """The last batch that the checkpoint holds. The policy after batch n is step n + 1."""
        self.died = False
        self.open()

    def open(self) -> None:
        """A process begins at the checkpoint."""
        opened = self.deliveries.open(
            "n", Purpose.TRAIN, self.token("o"), step=self.saved if self.saved >= 0 else None
        )
        self.owner = opened.owner
        for number in opened.steps:
            if number <= self.saved:
                self.deliveries.ack(self.hold(number), owner=self.owner)
        self.again = deque(number for number in opened.steps if number > self.saved)
        self.next = self.saved + 1
        self.publish(self.next)

    def hold(self, number: int) -> str:
        return f"{named_session(Purpose.TRAIN, 'n')}/{number}"

    def take(self, skips: int = 0) -> bool:
        """One training step; whether there was a batch."""
        number = self.next
        if self.again:
            assert self.again.popleft() == number
            found = self.taken(self.batch, self.hold(number), owner=self.owner, again=True)
        else:
            found = self.taken(self.batch, self.hold(number), owner=self.owner)
        for got in found.groups:
            assert number - self.began[got.id] <= self.bound
            # A group that was claimed before a death may be sampled under the checkpoint's weights
            # after it. The consumer reads its tokens and skips it
            # (tests/rollq/client/consuming/test_stale_groups.py).
            assert self.died or number - self.sampled[got.id] <= self.bound
        for got in found.groups[1 : 1 + skips]:
            self.deliveries.skip(self.hold(number), got.id, "rewards agree", owner=self.owner)
            self.let_go += 1
        if found.groups:
            assert self.step == number
            self.next += 1
        return bool(found.groups)

    @precondition(lambda self: hasattr(self, "owner"))
    @rule(
        skips=st.sampled_from([0, 0, 0, 1, 2]),
        filled=st.booleans(),
        dies=st.sampled_from([False] * 4 + [True]),
    )
    def trainer_takes_a_batch(self, skips: int, filled: bool, dies: bool) -> None:
        if not self.take(skips if filled else 0):
            return
        if dies:
            self.trainer_dies()
        else:
            self.publish(self.next)

    @precondition(lambda self: hasattr(self, "owner") and self.next > self.saved + 1)
    @rule()
    def trainer_saves(self) -> None:
        for number in range(self.saved + 1, self.next):
            self.deliveries.ack(self.hold(number), owner=self.owner)
        self.saved = self.next - 1

    @precondition(lambda self: hasattr(self, "owner"))
    @rule()
    def trainer_dies(self) -> None:
        self.died = True
        self.open()

    @precondition(lambda self: hasattr(self, "owner"))
    @rule()
    def all_goes_well(self) -> None:
        def step() -> None:
            if not self.take():
                self.all_play()  # a group was too old, and another is let in for it
                if self.submitted >= MOST:
                    return
                assert self.take()
            self.all_play()  # while it trains
            self.publish(self.next)

        self.goes_on(step)
        # After a restart, groups may begin under an older policy than the one that they were let in
        # for.
        assert self.died or "stale" not in self.reader.stats()["skips"]


class CarelessTrainers(Bounded):
    """Consumers without a name take, acknowledge, skip and publish as they like, and die."""

    def begin(self) -> None:
        self.holds: dict[str, list[str]] = {}
        self.publish(self.step)

    @precondition(lambda self: hasattr(self, "holds"))
    @rule(data=st.data())
    def consumer_takes(self, data: st.DataObject) -> None:
        token = self.token("t")
        found = self.taken(data.draw(st.integers(1, self.batch)), token)
        for got in found.groups:
            assert self.step - self.began[got.id] <= self.bound
            assert self.step - self.sampled[got.id] <= self.bound
        if found.groups:
            self.holds[token] = [got.id for got in found.groups]

    @precondition(lambda self: getattr(self, "holds", None))
    @rule(data=st.data(), how=st.sampled_from(["ack", "ack", "skip", "die", "fill"]))
    def consumer_ends(self, data: st.DataObject, how: str) -> None:
        token = data.draw(st.sampled_from(sorted(self.holds)))
        names = self.holds.pop(token)
        if how == "ack":
            self.deliveries.ack(token, names)
            return
        self.let_go += len(names)
        if how == "die":
            end_holds(self.ledger, *names)
        else:
            for name in names:
                self.deliveries.skip(token, name, "why not", filling=how == "fill")

    @precondition(lambda self: hasattr(self, "holds"))
    @rule(move=st.sampled_from([1, 1, 1, 2, 0, -1, -3]))
    def somebody_publishes(self, move: int) -> None:
        self.publish(max(0, self.step + move))

    @precondition(lambda self: hasattr(self, "holds"))
    @rule()
    def all_goes_well(self) -> None:
        """A new trainer begins at the published step. What the others hold has run out."""
        for names in self.holds.values():
            end_holds(self.ledger, *names)
        self.holds = {}
        self.publish(self.step)

        def step() -> None:
            for _ in range(MOST):
                token = self.token("t")
                found = self.taken(self.batch, token)
                if found.groups:
                    break
                # Old groups were skipped, or came back behind new ones: others are let in for them.
                self.all_play()
                if self.submitted >= MOST:
                    return
            assert found.groups
            self.deliveries.ack(token)
            self.publish(self.step + 1)

        self.goes_on(step)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("machine", [TrainerByTheBook, CarelessTrainers])
def test_no_batch_is_beyond_the_bound_and_nothing_waits_for_ever(
    redis_url: str, machine: type[Bounded]
) -> None:
    run_machine(machine, redis_url, examples=60)

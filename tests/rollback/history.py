"""One history: the actors take their steps in an order that a seed fixes, Redis loses its tail, and
all goes on.
"""

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollq import Client
from rollq.errors import Gap
from tests.ledger_of import ledger_of, reader_of
from tests.rollback.actors import RUN, SIZE, Player, Producer, SourcelessProducer, Trainer, group
from tests.rollback.redis_file import Record, RollbackRedis

WITH_SOURCE, WITHOUT = 5, 2
"""Groups of the two producers."""
PLAYERS = 3
QUIET = 40
"""Rounds in which nothing happens, after which nothing more will."""
SETTLE_S = 60.0


@dataclass(frozen=True)
class Cut:
    """After this many steps, Redis loses the last `records` records, and `part` of the one before
    them.

    With `part` 0 the cut is between two records.
    """

    step: int
    records: int
    part: float = 0.0


@dataclass
class Outcome:
    seed: int
    cuts: Sequence[Cut]
    steps: int = 0
    lost: list[str] = field(default_factory=list)
    """Kinds of the records that were lost, the first that was lost first."""
    wrong: list[str] = field(default_factory=list)
    fenced: int = 0
    again: int = 0
    """Groups that were acknowledged again because their acknowledgement was lost."""


class History:
    def __init__(self, redis: RollbackRedis, seed: int) -> None:
        self.rng, self.redis, url = random.Random(seed), redis, redis.url
        self.client = Client(url, run=RUN)
        self.groups = (
            [group(n, "a") for n in range(WITH_SOURCE)],
            [group(n, "b") for n in range(WITHOUT)],
        )
        self.producer = Producer(url, self.groups[0])
        self.sourceless = SourcelessProducer(url, self.groups[1])
        self.players = [Player(url, f"player-{n}", self.rng) for n in range(PLAYERS)]
        self.trainers = [Trainer(url, self.rng), Trainer(url, self.rng, "trainer")]
        self.sealed = False
        self.ack_lost: Counter[str] = Counter()
        """Group -> times that its acknowledgement was in a lost tail."""
        self.trail: list[str] = []

    # -- one step of one actor

    def step(self) -> str:
        acts: list[tuple[str, Callable[[], str]]] = [
            *[("producer", self.producer.step)] * 2,
            ("sourceless", self.sourceless.step),
            *[(player.name, player.step) for player in self.players] * 4,
            *[(f"trainer-{n}", trainer.step) for n, trainer in enumerate(self.trainers)] * 2,
            ("reaper", self.reap),
            ("seal", self.seal),
        ]
        if self.rng.random() < 0.03:
            acts = [("freeze", self.freeze), ("trainer-1", self.trainers[1].restart)]
        who, act = self.rng.choice(acts)
        did = act()
        self.trail.append(f"{who}: {did}")
        return did

    def reap(self) -> str:
        due = self.players[0].ledger.reap(100, ["rollq"])
        self.players[0].ledger.confirm([one.job_id for one in due])
        return "reap" if due else ""

    def seal(self) -> str:
        """Whoever has no source submits everything again before; a source's producer is told of a
        gap.
        """
        if self.sealed or not (self.producer.done and self.sourceless.done):
            return ""
        self.sourceless.repeat()
        try:
            self.producer.client.seal()
        except Gap:
            self.producer.start()
            return "submit again"
        self.sealed = True
        return "seal"

    def freeze(self) -> str:
        """The lease of a player ends, who will go on as if nothing had happened."""
        player = self.rng.choice(self.players)
        return self.expire_leases(lambda job_id: job_id == player.job_id)

    def expire_leases(self, of: Callable[[str], bool]) -> str:
        """What time does to leases that nobody renews."""
        redis, leased = (
            ledger_of(self.client).redis,
            ledger_of(self.client).keys.leased,
        )
        over = [
            member
            for member in redis.zrange(leased, 0, -1)
            if of(member.decode().partition("#")[0])
        ]
        if over:
            redis.zadd(leased, dict.fromkeys(over, 1), xx=True)
            redis.hset(ledger_of(self.client).keys.meta, "grace", 0)
            self.reap()
        return "expire" if over else ""

    def expire_holds(self) -> str:
        """What time does to holds that nobody renews."""
        ours = {
            one.id for trainer in self.trainers for batch in trainer.held for one in batch.groups
        }
        redis, held = (
            ledger_of(self.client).redis,
            f"{ledger_of(self.client).keys.prefix}held:train",
        )
        over = [name for name in redis.zrange(held, 0, -1) if name.decode() not in ours]
        if over:
            redis.zadd(held, dict.fromkeys(over, 1), xx=True)
        return "expire" if over else ""

    # -- the rollback

    def roll_back(self, cut: Cut) -> list[str]:
        """Kill, cut, start. Returns the kinds of the lost records."""
        self.redis.kill()
        records = self.redis.records()
        lost = records[max(0, len(records) - cut.records) :] if cut.records else []
        at = lost[0].start if lost else records[-1].end if records else 0
        if cut.part and len(lost) < len(records):
            torn: Record = records[len(records) - len(lost) - 1]
            at = torn.start + max(1, int(cut.part * (torn.end - torn.start)))
            lost = [torn, *lost]
        self.redis.cut(at)
        self.redis.start()
        for client in (
            self.client,
            self.producer.client,
            self.sourceless.client,
            *(t.client for t in self.trainers),
        ):
            ledger_of(client).redis.connection_pool.disconnect()
        for player in self.players:
            player.ledger.redis.connection_pool.disconnect()
        acked = self.acked()
        states = dict(zip(acked, reader_of(self.client).group_states(list(acked)), strict=True))
        for name, times in acked.items():
            if states[name] != "acked" and times > self.ack_lost[name]:
                self.ack_lost[name] += 1
        self.trail.append(f"CUT {cut}: lost {[record.kind for record in lost]}")
        return [record.kind for record in lost]

    def acked(self) -> Counter[str]:
        return sum((trainer.acked for trainer in self.trainers), Counter())

    # -- the end

    @property
    def names(self) -> list[str]:
        return [jobs[0].group for groups in self.groups for jobs in groups]

    def over(self) -> bool:
        if not reader_of(self.client).standing().sealed:
            return False
        return set(reader_of(self.client).group_states(self.names)) == {"acked"}

    def settle(self) -> list[str]:
        """Let everybody go on, then time pass, then the producers and trainers be started again.
        Returns what is wrong when the run still does not end.
        """
        until = time.monotonic() + SETTLE_S
        for remedy in (self._pass_time, self._start_again, self._pass_time):
            while True:
                self._until_quiet(until)
                if self.over() and not any(trainer.held for trainer in self.trainers):
                    return []
                if not remedy() or time.monotonic() > until:
                    break
        states = dict(zip(self.names, reader_of(self.client).group_states(self.names), strict=True))
        return [
            f"the run does not end: {states}, {reader_of(self.client).standing()}, "
            f"errors {self.producer.errors}"
        ]

    def _until_quiet(self, until: float) -> None:
        """A trainer that holds a batch will acknowledge it, at a time that chance decides."""
        quiet = 0
        while quiet < QUIET and time.monotonic() < until:
            idle = self.step() in ("", "expire", "restart") and not any(
                trainer.held for trainer in self.trainers
            )
            quiet = quiet + 1 if idle else 0

    def _pass_time(self) -> bool:
        playing = {player.job_id for player in self.players}
        leases = self.expire_leases(lambda job_id: job_id not in playing)
        return bool(leases or self.expire_holds())

    def _start_again(self) -> bool:
        """The same commands again, as somebody does who sees that a run waits for ever. Once."""
        self.producer.close()
        self.producer = Producer(self.redis.url, self.groups[0])
        self.producer.source.allow(WITH_SOURCE)
        assert self.producer.ended.wait(SETTLE_S), "submit hangs"
        self.sourceless.repeat()
        self.producer.client.seal()
        for trainer in self.trainers:
            trainer.restart()
        return False

    def accounts(self) -> list[str]:
        """What does not add up in a run that is over."""
        stats, jobs, acked = self.client.stats(), len(self.names) * SIZE, self.acked()
        expected: dict[str, Any] = dict.fromkeys(("submitted", "done", "delivered"), jobs) | {
            "groups_acked": len(self.names)
        }
        places = (
            "queued",
            "leased",
            "dead",
            "groups_open",
            "groups_ready",
            "groups_held",
            "groups_dropped",
        )
        expected |= dict.fromkeys(places, 0)
        wrong = [
            f"{name} is {stats[name]}, not {value}"
            for name, value in expected.items()
            if stats[name] != value
        ]
        for name in self.names:
            if acked[name] != 1 + self.ack_lost[name]:
                wrong.append(
                    f"group {name}: acknowledged {acked[name]} times, "
                    f"{self.ack_lost[name]} of them lost"
                )
        return wrong + [why for one in (*self.trainers, *self.players) for why in one.wrong]

    def close(self) -> None:
        self.producer.close()
        for actor in (self.sourceless, *self.players, *self.trainers, self.client):
            actor.close()


def play(folder: Path, seed: int, cuts: Sequence[Cut]) -> Outcome:
    """Play the history of this seed with these rollbacks, to its end."""
    outcome = Outcome(seed, cuts)
    redis = RollbackRedis(folder)
    trail: list[str] = []
    try:
        with closing(History(redis, seed)) as history:
            trail = history.trail
            outcome.wrong = _play(history, outcome)
    except Exception as e:
        outcome.wrong = [f"{type(e).__name__}: {e}"]
        trail.append(traceback.format_exc())
    finally:
        redis.kill()
    if outcome.wrong:
        (folder / "trail.txt").write_text("\n".join([*trail, *outcome.wrong]))
    return outcome


def _play(history: History, outcome: Outcome) -> list[str]:
    left = sorted(outcome.cuts, key=lambda cut: cut.step)
    while left:
        if outcome.steps >= left[0].step or history.over():
            outcome.lost += history.roll_back(left.pop(0))
        else:
            history.step()
            outcome.steps += 1
    wrong = history.settle() or history.accounts()
    outcome.fenced = sum(player.fenced for player in history.players)
    outcome.again = history.ack_lost.total()
    return wrong

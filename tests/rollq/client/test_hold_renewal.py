"""When holds end: not because of a silence in which nobody could renew them.

The silence is made by setting everything back that was stored, which to a script is the same as Redis's clock having
gone on. Every time of the pulse is SCALE times as long as in production, so that how long a test takes changes nothing.
"""

import logging
import threading
from math import inf
from typing import Any

import pytest
import redis

from rollq.client import consumer
from rollq.client.consumer import HoldRenewal
from rollq.errors import NotHeld, Unwritable
from rollq.job import Purpose
from rollq.ledger import outage as pulse_module
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from tests.rollq.samples import group, play, reader

SCALE = 100.0
HOLD_S = 60.0 * SCALE
GRACE_S = pulse_module.GRACE_S * SCALE


@pytest.fixture(autouse=True)
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "OUTAGE_S", pulse_module.OUTAGE_S * SCALE)
    monkeypatch.setattr(pulse_module, "GRACE_S", GRACE_S)


@pytest.fixture
def held(ledger: Ledger) -> Ledger:
    """Groups a and b, each with a consumer of its own that took it just now, and c, which nobody wants."""
    for name in ("a", "b", "c"):
        ledger.submit(group(name))
        for sample in range(2):
            play(ledger, f"r/{name}/{sample}")
    for name in ("a", "b"):
        assert taken(ledger, name) == [name]
    return ledger


def taken(ledger: Ledger, token: str, groups: int = 1) -> list[str]:
    return [found.id for found in ledger.take(groups, token, HOLD_S)]


def asked(ledger: Ledger) -> list[str]:
    """What somebody gets who asks for more than there is, or would get if there were enough."""
    keys = ledger.keys
    before = {name.decode() for name in ledger.redis.zrange(keys.ready("train"), 0, -1)}
    assert taken(ledger, "asking", 9) == []
    return sorted({name.decode() for name in ledger.redis.zrange(keys.ready("train"), 0, -1)} - before)


def passes(ledger: Ledger, seconds: float) -> None:
    """So many seconds of production."""
    redis, keys, by = ledger.redis, ledger.keys, seconds * SCALE
    for purpose in Purpose:
        for name, end in redis.zrange(keys.held(purpose), 0, -1, withscores=True):
            redis.zadd(keys.held(purpose), {name: end - by})
        if at := redis.hget(keys.meta, f"heard:{purpose}"):
            redis.hset(keys.meta, f"heard:{purpose}", float(at) - by)


def left(ledger: Ledger, name: str) -> float:
    return float(ledger.redis.zscore(ledger.keys.held("train"), name) - ledger.scripts.now()) / SCALE


@pytest.mark.parametrize("seconds", [61.0, 66.0, 600.0, 86400.0])
def test_after_an_outage_a_live_consumer_keeps_its_batch_and_a_dead_one_does_not(held: Ledger, seconds: float) -> None:
    passes(held, seconds)
    assert asked(held) == []
    assert 7.0 < left(held, "a") <= 7.5
    passes(held, 4.0)
    held.extend_hold("a", HOLD_S)
    assert asked(held) == []
    passes(held, 4.0)
    assert asked(held) == ["b"]
    held.ack("a", ["r/a/0", "r/a/1"])
    with pytest.raises(NotHeld):
        held.extend_hold("b", HOLD_S)
    stats = reader(held).stats()
    assert (stats["delivered"], stats["duplicates"]) == (2, 0)


def test_what_would_end_within_the_grace_has_all_of_it(held: Ledger) -> None:
    passes(held, 58.0)
    assert asked(held) == []
    assert left(held, "a") > 7.0


def test_an_outage_within_the_grace_begins_it_anew(held: Ledger) -> None:
    passes(held, 100.0)
    assert asked(held) == []
    passes(held, 100.0)
    assert asked(held) == []
    assert left(held, "a") > 7.0


@pytest.mark.parametrize("who", ["somebody asks", "a reaper comes by"])
def test_without_a_silence_a_hold_ends_when_it_says(held: Ledger, who: str) -> None:
    for _ in range(14):
        passes(held, 4.0)
        if who == "somebody asks":
            assert asked(held) == []
        else:
            held.reap(expire_until=inf)
        held.extend_hold("a", HOLD_S)
    passes(held, 4.5)
    assert asked(held) == ["b"]


def test_one_that_had_ended_while_redis_was_there_ends_at_once(held: Ledger) -> None:
    """Asked for at last, by somebody who was busy."""
    for _ in range(15):
        passes(held, 4.1)
        held.reap(expire_until=inf)
    passes(held, 30.0)
    assert asked(held) == ["a", "b"]


def test_a_reaper_that_does_not_know_says_nothing(held: Ledger) -> None:
    """Its pulse tells of an outage: leases have their grace, and holds as well."""
    passes(held, 100.0)
    held.reap(expire_until=0.0)
    assert asked(held) == []


def test_purposes_are_apart(held: Ledger) -> None:
    held.submit(group("e", purpose=Purpose.EVAL))
    for sample in range(2):
        play(held, f"r/e/{sample}")
    assert held.take(1, "e", HOLD_S, Purpose.EVAL)
    passes(held, 100.0)
    assert asked(held) == []
    assert held.take(1, "f", HOLD_S, Purpose.EVAL) == []
    held.extend_hold("e", HOLD_S)


@pytest.mark.parametrize("by", [72.0, 86400.0, -72.0, -86400.0])
def test_a_clock_that_jumps_costs_nobody_a_batch(held: Ledger, by: float) -> None:
    passes(held, by)
    assert asked(held) == []
    held.extend_hold("a", HOLD_S)
    held.extend_hold("b", HOLD_S)
    assert asked(held) == []


def test_when_nobody_knows_who_was_heard(held: Ledger) -> None:
    """The run's own key was lost: the grace first, and then the end as ever."""
    held.redis.hdel(held.keys.meta, "heard:train")
    held.redis.zadd(held.keys.held("train"), {"a": 1, "b": 1})
    assert asked(held) == []
    held.extend_hold("a", HOLD_S)
    passes(held, 4.0)
    assert asked(held) == []
    passes(held, 4.0)
    assert asked(held) == ["b"]


def test_a_forgotten_run_does_not_come_back(held: Ledger) -> None:
    DeadLetters(held.redis, "r").forget_run()
    assert taken(held, "x") == []
    held.reap(expire_until=inf)
    assert not list(held.redis.scan_iter("*{r}*"))


class UnreachableLedger:
    """A ledger whose first calls fail, and for which the token `lost` is not held."""

    run = "r"

    def __init__(self, error: Exception, failures: int) -> None:
        self.error = error
        self.failures = failures
        self.renewed: list[str] = []
        self.reached = threading.Event()

    def extend_hold(self, token: str, hold_s: float) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        self.renewed.append(token)
        if token == "lost":
            raise NotHeld("gone")
        self.reached.set()


@pytest.mark.parametrize("error", [redis.ConnectionError("refused"), Unwritable("run r: extend: READONLY")])
def test_a_consumer_that_cannot_renew_tries_again_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(consumer, "RENEW_RETRY_S", 0.01)
    waits: list[float] = []
    ledger: Any = UnreachableLedger(error, 4)
    holds = HoldRenewal(ledger, 60.0)
    stopped = holds._stop.wait

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return stopped(0.01)

    monkeypatch.setattr(holds._stop, "wait", wait)
    with caplog.at_level(logging.WARNING, "rollq"):
        holds.add("t", 1)
        assert ledger.reached.wait(60)
    holds.close()
    assert waits[:5] == [20.0, 0.01, 0.01, 0.01, 0.01]
    assert waits[5:6] in ([], [20.0])
    assert len([record for record in caplog.records if "cannot renew a hold" in record.message]) == 1


def test_a_lost_hold_is_renewed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger: Any = UnreachableLedger(ConnectionError("away"), 2)
    holds = HoldRenewal(ledger, hold_s=0.05)
    holds.add("lost", 3)
    holds.add("kept", 2)
    assert ledger.reached.wait(60)
    holds.drop("kept")
    assert holds.groups == 0
    holds.close()
    assert ledger.renewed.count("lost") == 1

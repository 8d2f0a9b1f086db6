"""A look at all active runs: those that it does not name are as if they had been reaped."""

from collections.abc import Callable

import pytest
import redis

from rollq.ledger.constants import CONFIRMED_S, GRACE_S, LEASE_S, LONGEST_BACKOFF_S, OUTAGE_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers import reaping
from rollq.ledger.workers.reaping import ActiveRuns, Look
from tests.rollq.groups import take
from tests.rollq.samples import claim, group, play
from tests.rollq.samples import reap as reap_after_calm

State = Callable[[Ledger], object]


def look(ledger: Ledger, broker_is_empty: bool = False) -> Look:
    return ActiveRuns(ledger.redis).look(broker_is_empty)


def reaped(ledger: Ledger, seconds_ago: float = 1.0) -> None:
    beat = ledger.scripts.now() - seconds_ago
    ledger.redis.hset(ledger.keys.meta, mapping={"beat": beat, "grace": 0})


def queued(ledger: Ledger, due_in_s: float = CONFIRMED_S - 1.0) -> None:
    ledger.submit(group(size=1), send_in_s=due_in_s)
    reaped(ledger)


def leased(ledger: Ledger, left_s: float = LEASE_S - 1.0) -> None:
    queued(ledger)
    claim(ledger, "r/g/0")
    ends = ledger.scripts.now() + left_s
    ledger.redis.zadd(ledger.keys.leased, {"r/g/0#1#token": ends})


def expired_after_an_outage(ledger: Ledger) -> None:
    leased(ledger, -1.0)
    reaped(ledger, OUTAGE_S + 1.0)


def damaged(ledger: Ledger) -> None:
    queued(ledger)
    ledger.redis.set(ledger.keys.leased, "junk")


@pytest.mark.parametrize(
    ("state", "is_due"),
    [
        (queued, False),
        (lambda ledger: queued(ledger, 0.0), True),
        (lambda ledger: queued(ledger, CONFIRMED_S + 10.0), True),  # the clock was set back
        (leased, False),
        (lambda ledger: leased(ledger, -1.0), True),
        (lambda ledger: leased(ledger, LEASE_S + 10.0), True),  # the clock was set back
        (expired_after_an_outage, False),
        (damaged, True),
    ],
)
def test_what_must_be_reaped(ledger: Ledger, state: State, is_due: bool) -> None:
    state(ledger)
    found = look(ledger)
    assert (found.names, found.due, found.idle) == (["r"], ["r"] * is_due, [])
    assert look(ledger).due == found.due


def test_a_message_that_the_broker_lost(ledger: Ledger) -> None:
    queued(ledger, CONFIRMED_S - LONGEST_BACKOFF_S)
    assert not look(ledger).due
    assert look(ledger, broker_is_empty=True).due == ["r"]


def test_a_run_without_jobs_is_idle_and_left_as_it_was(ledger: Ledger) -> None:
    queued(ledger)
    play(ledger, "r/g/0")
    before = ledger.redis.hgetall(ledger.keys.meta)
    assert look(ledger) == Look(["r"], [], ["r"], 0)
    assert ledger.redis.hgetall(ledger.keys.meta) == before


def test_it_counts_as_a_reap(ledger: Ledger) -> None:
    """So what comes after it is no outage, and what comes after a silence is one."""
    leased(ledger)
    reaped(ledger, OUTAGE_S - 1.0)
    look(ledger)
    beat, grace = map(float, ledger.redis.hmget(ledger.keys.meta, "beat", "grace"))
    assert abs(beat - ledger.scripts.now()) < 1.0 and grace == 0
    reaped(ledger, OUTAGE_S + 1.0)
    look(ledger)
    beat, grace = map(float, ledger.redis.hmget(ledger.keys.meta, "beat", "grace"))
    assert grace - beat == pytest.approx(GRACE_S)


def test_who_renews_holds_can_reach_redis(ledger: Ledger) -> None:
    """Said as often as by a reap: else a hold would not expire (take.lua)."""
    ledger.submit(group("h", size=1))
    play(ledger, "r/h/0")
    take(ledger, 1, "t")
    leased(ledger)
    ledger.redis.hset(ledger.keys.meta, "heard:train", 1)
    look(ledger)
    heard = float(ledger.redis.hget(ledger.keys.meta, "heard:train"))
    assert abs(heard - ledger.scripts.now()) < 1.0
    assert reap_after_calm(ledger) == []


def test_many_runs_take_several_calls(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "PAGE", 2)
    for number in range(5):
        Ledger(client, f"r{number}").submit(group(run=f"r{number}"), send_in_s=number % 2 * 60)
    found = ActiveRuns(client).look()
    assert sorted(found.names) == ["r0", "r1", "r2", "r3", "r4"]
    assert sorted(found.due) == ["r0", "r2", "r4"] and found.queued == 10
    client.delete("rollq:active")
    assert ActiveRuns(client).look() == Look([], [], [], 0)

"""When holds end, and how a consumer renews them. After an outage of Redis, live consumers get time
to renew.

An outage is simulated by moving every stored time back, which looks to a script as if Redis's clock
had moved on. All times are SCALE times as long as in production, so that a slow machine changes
nothing.
"""

import logging
import threading
import time
from collections.abc import Sequence

import pytest
import redis

from rollq.client.consuming import hold_renewal
from rollq.client.consuming.hold_renewal import HoldRenewal
from rollq.errors import Unwritable
from rollq.job import Purpose
from rollq.ledger import constants
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import ack, deliveries, finish_groups
from tests.rollq.groups import take as take_groups
from tests.rollq.other_constants import change_constants
from tests.rollq.samples import reader, reap

SCALE = 100.0
HOLD_S = 60.0 * SCALE
GRACE_S = constants.GRACE_S * SCALE


@pytest.fixture(autouse=True)
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constants(monkeypatch, OUTAGE_S=constants.OUTAGE_S * SCALE, GRACE_S=GRACE_S)


@pytest.fixture
def held(ledger: Ledger) -> Ledger:
    """Groups a and b, each just taken by a consumer of the same name, and c, which is ready."""
    finish_groups(ledger, "a", "b", "c")
    for name in ("a", "b"):
        assert take(ledger, name) == [name]
    return ledger


def take(ledger: Ledger, token: str, groups: int = 1) -> list[str]:
    return [found.id for found in take_groups(ledger, groups, token, HOLD_S)]


def renew(ledger: Ledger, token: str, purpose: Purpose = Purpose.TRAIN) -> bool:
    """Whether the hold is kept."""
    return deliveries(ledger).renew_holds([token], HOLD_S, purpose) == []


def released(ledger: Ledger) -> list[str]:
    """The groups whose holds a consumer ends that asks for more groups than there are."""
    keys = ledger.keys
    before = {name.decode() for name in ledger.redis.zrange(f"{keys.prefix}ready:train", 0, -1)}
    assert take(ledger, "another", 9) == []
    return sorted(
        {name.decode() for name in ledger.redis.zrange(f"{keys.prefix}ready:train", 0, -1)} - before
    )


def seconds_pass(ledger: Ledger, seconds: float) -> None:
    """Seconds, as production counts them."""
    redis, keys, by = ledger.redis, ledger.keys, seconds * SCALE
    for purpose in Purpose:
        for name, end in redis.zrange(f"{keys.prefix}held:{purpose}", 0, -1, withscores=True):
            redis.zadd(f"{keys.prefix}held:{purpose}", {name: end - by})
        if at := redis.hget(keys.meta, f"heard:{purpose}"):
            redis.hset(keys.meta, f"heard:{purpose}", float(at) - by)


def seconds_left(ledger: Ledger, name: str) -> float:
    return (
        float(ledger.redis.zscore(f"{ledger.keys.prefix}held:train", name) - ledger.scripts.now())
        / SCALE
    )


@pytest.mark.parametrize("seconds", [61.0, 66.0, 600.0, 86400.0])
def test_after_an_outage_a_live_consumer_keeps_its_batch_and_a_dead_one_does_not(
    held: Ledger, seconds: float
) -> None:
    seconds_pass(held, seconds)
    assert released(held) == []
    assert 7.0 < seconds_left(held, "a") <= 7.5
    seconds_pass(held, 4.0)
    assert renew(held, "a")
    assert released(held) == []
    seconds_pass(held, 4.0)
    assert released(held) == ["b"]
    ack(held, "a", "a")
    assert not renew(held, "b")
    stats = reader(held).stats()
    assert stats["delivered"] == 2


@pytest.mark.parametrize(
    "outages", [[58.0], [100.0, 100.0]], ids=["one that ends just before a hold", "two"]
)
def test_an_outage_extends_the_holds_that_would_end_soon(
    held: Ledger, outages: list[float]
) -> None:
    for seconds in outages:
        seconds_pass(held, seconds)
        assert released(held) == []
    assert seconds_left(held, "a") > 7.0


@pytest.mark.parametrize("who", ["a consumer asks", "a reaper runs"])
def test_without_an_outage_a_hold_ends_on_time(held: Ledger, who: str) -> None:
    for _ in range(14):
        seconds_pass(held, 4.0)
        if who == "a consumer asks":
            assert released(held) == []
        else:
            reap(held)
        assert renew(held, "a")
    seconds_pass(held, 4.5)
    assert released(held) == ["b"]


def test_a_hold_that_ended_before_an_outage_is_not_extended(held: Ledger) -> None:
    """No consumer asked while Redis was there, so the hold still stands."""
    for _ in range(15):
        seconds_pass(held, 4.1)
        reap(held)
    seconds_pass(held, 30.0)
    assert released(held) == ["a", "b"]


def test_a_reaper_that_saw_an_outage_does_not_end_the_grace(held: Ledger) -> None:
    """Leases keep their grace, and holds keep theirs."""
    seconds_pass(held, 100.0)
    held.reap()
    assert released(held) == []


def test_holds_of_another_purpose_are_independent(held: Ledger) -> None:
    finish_groups(held, "e", purpose=Purpose.EVAL)
    assert take_groups(held, 1, "e", HOLD_S, Purpose.EVAL)
    seconds_pass(held, 100.0)
    assert released(held) == []
    assert take_groups(held, 1, "f", HOLD_S, Purpose.EVAL) == []
    assert renew(held, "e", Purpose.EVAL)


@pytest.mark.parametrize("by", [72.0, 86400.0, -72.0, -86400.0])
def test_a_clock_that_jumps_costs_no_batch(held: Ledger, by: float) -> None:
    seconds_pass(held, by)
    assert released(held) == []
    assert renew(held, "a")
    assert renew(held, "b")
    assert released(held) == []


def test_a_batch_that_is_taken_behind_a_clock_that_was_set_back_is_held_as_long(
    ledger: Ledger,
) -> None:
    finish_groups(ledger, "a")
    ledger.redis.hset(ledger.keys.meta, "heard:train", ledger.scripts.now() + 3600)
    assert take(ledger, "t") == ["a"]
    assert seconds_left(ledger, "a") > 50.0


@pytest.mark.parametrize("who", ["a reaper", "a consumer"])
def test_a_clock_that_is_set_back_keeps_no_dead_consumers_batch(held: Ledger, who: str) -> None:
    seconds_pass(held, -3600.0)
    if who == "a reaper":
        reap(held)
    assert released(held) == [] and seconds_left(held, "a") <= 60.0
    assert renew(held, "b")
    for _ in range(7):
        seconds_pass(held, 4.0)
        reap(held)
    assert renew(held, "b")
    for _ in range(9):
        seconds_pass(held, 4.0)
        reap(held)
    assert released(held) == ["a"]


def test_holds_are_extended_when_the_last_contact_is_unknown(held: Ledger) -> None:
    """The run's record of it was lost: holds get the grace first, then end as usual."""
    held.redis.hdel(held.keys.meta, "heard:train")
    held.redis.zadd(f"{held.keys.prefix}held:train", {"a": 1, "b": 1})
    assert released(held) == []
    assert renew(held, "a")
    seconds_pass(held, 4.0)
    assert released(held) == []
    seconds_pass(held, 4.0)
    assert released(held) == ["b"]


class Renewals:
    """Renewals of which the first ones fail, and for which the token `lost` is not held."""

    def __init__(self, error: Exception, failures: int) -> None:
        self.error = error
        self.failures = failures
        self.renewed: list[str] = []
        self.reached = threading.Event()

    def __call__(self, tokens: Sequence[str]) -> list[str]:
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        self.renewed += tokens
        if "lost" not in tokens:
            self.reached.set()
        return [token for token in tokens if token == "lost"]


@pytest.mark.parametrize(
    "error", [redis.ConnectionError("refused"), Unwritable("run r: renew_holds: READONLY")]
)
def test_a_consumer_that_cannot_renew_tries_again_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(hold_renewal, "RENEW_RETRY_S", 0.01)
    renewals = Renewals(error, 4)
    holds = HoldRenewal(renewals, 3.0)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "rollq"):
        holds.set("t", 1)
        assert renewals.reached.wait(60)
    holds.close()
    # A second until the first renewal, and not another one for each of its repetitions.
    assert 1.0 <= time.monotonic() - began < 4.0
    assert len([record for record in caplog.records if "cannot renew holds" in record.message]) == 1


def test_a_lost_hold_is_renewed_no_more() -> None:
    renewals = Renewals(ConnectionError("away"), 2)
    holds = HoldRenewal(renewals, hold_s=0.05)
    holds.set("lost", 3)
    holds.set("kept", 2)
    assert renewals.reached.wait(60)
    holds.drop("kept")
    assert holds.groups == 0
    holds.close()
    assert renewals.renewed.count("lost") == 1


def test_a_hold_that_ends_while_it_is_renewed_was_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = threading.Event()

    def renew(tokens: Sequence[str]) -> Sequence[str]:
        if "acked" in tokens:
            holds.drop("acked")  # as its caller does, once its acknowledgement is through
            return ["acked"]
        done.set()
        return []

    holds = HoldRenewal(renew, hold_s=0.05)
    with caplog.at_level(logging.WARNING, "rollq"):
        holds.set("kept", 1)
        holds.set("acked", 1)
        assert done.wait(60)
    holds.close()
    assert not [record for record in caplog.records if "lost" in record.message]


def test_a_batch_that_is_taken_again_while_its_hold_is_renewed_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    renewed = threading.Event()

    def renew(tokens: Sequence[str]) -> Sequence[str]:
        if renewed.is_set():
            return []
        holds.drop("t")  # its groups were skipped, so Redis has no such hold
        holds.set("t", 2)  # and then others were taken
        renewed.set()
        return ["t"]

    holds = HoldRenewal(renew, hold_s=0.05)
    with caplog.at_level(logging.WARNING, "rollq"):
        holds.set("t", 1)
        assert renewed.wait(60)
        time.sleep(0.2)  # longer than the pause behind a lost hold
    assert holds.groups == 2
    holds.close()
    assert not [record for record in caplog.records if "lost" in record.message]


def test_a_hold_of_any_length_is_renewed() -> None:
    holds = HoldRenewal(lambda tokens: [], hold_s=1e11)
    holds.set("t", 1)
    time.sleep(0.1)
    assert any(thread.name == "rollq-holds" for thread in threading.enumerate())
    holds.close()

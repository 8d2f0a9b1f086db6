"""When leases may expire: after a silence of all reapers only once live workers have had the time to renew.

The silence is made by setting the last stamp back, which to a script is the same as Redis's clock having gone on. Every
time of the pulse is SCALE times as long as in production, so that how long a test takes changes nothing.
"""

from collections.abc import Callable

import pytest

from rollq.errors import FailureClass, Unwritable
from rollq.ledger import outage as pulse_module
from rollq.ledger.keys import PULSE
from rollq.ledger.ledger import Claim, Ledger
from rollq.ledger.outage import Pulse
from tests.rollq.samples import claim, group, journal

SCALE = 100.0
OUTAGE_S, GRACE_S = pulse_module.OUTAGE_S * SCALE, pulse_module.GRACE_S * SCALE


@pytest.fixture(autouse=True)
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "OUTAGE_S", OUTAGE_S)
    monkeypatch.setattr(pulse_module, "GRACE_S", GRACE_S)


@pytest.fixture
def pulse(ledger: Ledger) -> Pulse:
    return Pulse(ledger.redis)


def silence(ledger: Ledger, seconds: float) -> None:
    """So many seconds of production."""
    for name in ("beat", "grace"):
        at = float(ledger.redis.hget(PULSE, name))
        ledger.redis.hset(PULSE, name, at - seconds * SCALE)


def expire(ledger: Ledger, *job_ids: str) -> None:
    for job_id in job_ids:
        ledger.redis.zadd(ledger.keys.leased, {f"{job_id}#1": 1}, xx=True)


def test_the_first_beat_ever_is_one_after_a_silence(ledger: Ledger, pulse: Pulse) -> None:
    assert pulse.beat() == 0.0
    silence(ledger, 1.0)
    assert pulse.beat() == 0.0
    for _ in range(8):
        silence(ledger, 1.0)
        until = pulse.beat()
    assert 0 < until - ledger.now() <= OUTAGE_S


@pytest.mark.parametrize(("seconds", "outage"), [(1.0, False), (4.9, False), (5.1, True), (60.0, True), (3600.0, True)])
def test_how_long_an_outage_is(ledger: Ledger, pulse: Pulse, seconds: float, outage: bool) -> None:
    ledger.redis.hset(PULSE, mapping={"beat": ledger.now(), "grace": 0})
    silence(ledger, seconds)
    assert (pulse.beat() == 0.0) is outage
    if outage:
        grace = float(ledger.redis.hget(PULSE, "grace")) - ledger.now()
        assert GRACE_S - 50 < grace <= GRACE_S
        silence(ledger, 4.0)
        assert pulse.beat() == 0.0
        silence(ledger, 4.0)
        assert pulse.beat() > 0.0


def test_a_silence_within_the_grace_begins_it_anew(ledger: Ledger, pulse: Pulse) -> None:
    pulse.beat()
    silence(ledger, 6.0)
    assert pulse.beat() == 0.0
    silence(ledger, 3.0)
    assert pulse.beat() == 0.0


def test_another_reaper_keeps_it_going(ledger: Ledger, pulse: Pulse) -> None:
    ledger.redis.hset(PULSE, mapping={"beat": ledger.now(), "grace": 0})
    other = Pulse(ledger.redis)
    for _ in range(4):
        silence(ledger, 4.0)
        assert other.beat() > 0.0
    assert pulse.beat() > 0.0


def test_a_verdict_is_good_for_a_moment_only(ledger: Ledger, pulse: Pulse) -> None:
    """A call that waited out an outage on its way must not expire what nobody could renew meanwhile."""
    ledger.submit(group())
    claim(ledger, "r/g/0")
    expire(ledger, "r/g/0")
    ledger.redis.hset(PULSE, mapping={"beat": ledger.now(), "grace": 0})
    until = pulse.beat()
    assert ledger.reap(expire_until=until - OUTAGE_S - 10.0) == []
    assert ledger.reap(expire_until=until) == ["r/g/0"]


def test_live_workers_renew_within_the_grace_and_only_the_dead_ones_jobs_come_back(
    ledger: Ledger, pulse: Pulse
) -> None:
    ledger.submit(group(), publish_in_s=600)
    for job_id in ("r/g/0", "r/g/1"):
        claim(ledger, job_id)
    ledger.redis.hset(PULSE, mapping={"beat": ledger.now(), "grace": 0})
    expire(ledger, "r/g/0", "r/g/1")
    silence(ledger, 60.0)
    assert ledger.reap(expire_until=pulse.beat()) == []
    assert ledger.renew([("r/g/0", 1)]) == []
    silence(ledger, 4.0)
    assert ledger.reap(expire_until=pulse.beat()) == []
    silence(ledger, 4.0)
    assert ledger.reap(expire_until=pulse.beat()) == ["r/g/1"]
    assert ledger.stats()["expired"] == 1


class TestClock:
    """Redis's host is set another time: everything stored is that much older, or lies that much ahead."""

    def move(self, ledger: Ledger, by: float) -> None:
        silence(ledger, by)
        by *= SCALE
        for key in (ledger.keys.leased, ledger.keys.queued):
            for member, at in ledger.redis.zrange(key, 0, -1, withscores=True):
                ledger.redis.zadd(key, {member: at - by})
        for job_id in ("r/g/0", "r/g/1"):
            for name in ("deadline", "not_before"):
                if at := float(ledger.redis.hget(ledger.keys.job(job_id), name) or 0):
                    ledger.redis.hset(ledger.keys.job(job_id), name, at - by)

    @pytest.fixture
    def moved(self, ledger: Ledger, pulse: Pulse) -> Callable[[float], None]:
        ledger.submit(group())
        for job_id in ("r/g/0", "r/g/1"):
            claim(ledger, job_id)
        journal(ledger, "r/g/0", 1, [])
        ledger.redis.hset(PULSE, mapping={"beat": ledger.now(), "grace": 0})
        return lambda by: self.move(ledger, by)

    @pytest.mark.parametrize("by", [100.0, 7200.0, -100.0, -7200.0])
    def test_no_live_lease_is_lost(
        self, ledger: Ledger, pulse: Pulse, moved: Callable[[float], None], by: float
    ) -> None:
        moved(by)
        assert ledger.reap(expire_until=pulse.beat()) == []
        before = ledger.now()
        assert ledger.renew([("r/g/0", 1)], left_s=[1700.0]) == []
        end = ledger.redis.zscore(ledger.keys.leased, "r/g/0#1")
        assert before + 15 <= end <= ledger.now() + 15  # the worker's own clock tells how far its deadline is
        for _ in range(6):
            silence(ledger, 4.0)
            until = pulse.beat()
            ledger.renew([("r/g/0", 1)])
            # The dead one's lease ends no later than one lease from now, wherever the clock was.
            left = ledger.redis.zscore(ledger.keys.leased, "r/g/1#1") - ledger.now()
            assert left <= 15
        ledger.redis.zadd(ledger.keys.leased, {"r/g/1#1": ledger.now() - 1})
        assert ledger.reap(expire_until=until) == ["r/g/1"]

    @pytest.mark.parametrize("by", [7200.0, -7200.0])
    def test_nothing_waits_for_hours(
        self, ledger: Ledger, pulse: Pulse, moved: Callable[[float], None], by: float
    ) -> None:
        ledger.fail("r/g/0", 1, FailureClass.ENGINE, "down")
        ledger.release("r/g/1", 1)
        ledger.confirm(ledger.reap())
        moved(by)
        assert sorted(ledger.reap(expire_until=pulse.beat())) == ["r/g/0", "r/g/1"]
        for job_id in ("r/g/0", "r/g/1"):
            assert isinstance(ledger.claim(job_id, worker="w", token="u"), Claim)


@pytest.mark.parametrize("damage", ["string", "list", "fields"])
def test_a_damaged_pulse_is_made_anew(ledger: Ledger, pulse: Pulse, damage: str) -> None:
    match damage:
        case "string":
            ledger.redis.set(PULSE, "garbage")
        case "list":
            ledger.redis.rpush(PULSE, "garbage")
        case "fields":
            ledger.redis.hset(PULSE, mapping={"beat": "many", "grace": "inf"})
    assert pulse.beat() == 0.0
    for _ in range(2):
        silence(ledger, 4.0)
        until = pulse.beat()
    assert until > ledger.now()


def test_a_redis_that_takes_no_writes(ledger: Ledger, pulse: Pulse) -> None:
    ledger.redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(Unwritable, match="rollq:pulse: NOREPLICAS"):
            pulse.beat()
    finally:
        ledger.redis.config_set("min-replicas-to-write", 0)

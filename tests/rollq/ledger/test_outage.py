"""When leases may expire: after a silence of all reapers, only once live workers have had the time to renew.

A test makes the silence by setting the last stamp back; to the script, Redis's clock has gone on. All times are SCALE
times as long as in production, so that how long a test takes changes nothing.
"""

from collections.abc import Callable

import pytest

from rollq.errors import Unwritable
from rollq.ledger import constants
from rollq.ledger.keys import OUTAGE_STAMP
from rollq.ledger.ledger import Ledger
from rollq.ledger.outage import OutageDetector
from tests.rollq.samples import claim, group, journal, reader

SCALE = 100.0
OUTAGE_S, GRACE_S = constants.OUTAGE_S * SCALE, constants.GRACE_S * SCALE


@pytest.fixture(autouse=True)
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "OUTAGE_S", OUTAGE_S)
    monkeypatch.setattr(constants, "GRACE_S", GRACE_S)


@pytest.fixture
def detector(ledger: Ledger) -> OutageDetector:
    return OutageDetector(ledger.redis)


def silence(ledger: Ledger, seconds: float) -> None:
    """For so many of production's seconds no reaper stamped."""
    for name in ("beat", "grace"):
        at = float(ledger.redis.hget(OUTAGE_STAMP, name))
        ledger.redis.hset(OUTAGE_STAMP, name, at - seconds * SCALE)


def expire(ledger: Ledger, *job_ids: str) -> None:
    for job_id in job_ids:
        ledger.redis.zadd(ledger.keys.leased, {f"{job_id}#1": 1}, xx=True)


def test_the_first_stamp_ever_counts_as_an_outage(ledger: Ledger, detector: OutageDetector) -> None:
    assert detector.stamp() == 0.0
    silence(ledger, 1.0)
    assert detector.stamp() == 0.0
    for _ in range(8):
        silence(ledger, 1.0)
        until = detector.stamp()
    assert 0 < until - ledger.scripts.now() <= OUTAGE_S


@pytest.mark.parametrize(
    ("seconds", "is_outage"), [(1.0, False), (4.9, False), (5.1, True), (60.0, True), (3600.0, True)]
)
def test_how_long_an_outage_is(ledger: Ledger, detector: OutageDetector, seconds: float, is_outage: bool) -> None:
    ledger.redis.hset(OUTAGE_STAMP, mapping={"beat": ledger.scripts.now(), "grace": 0})
    silence(ledger, seconds)
    assert (detector.stamp() == 0.0) is is_outage
    if is_outage:
        grace = float(ledger.redis.hget(OUTAGE_STAMP, "grace")) - ledger.scripts.now()
        assert GRACE_S - 50 < grace <= GRACE_S
        silence(ledger, 4.0)
        assert detector.stamp() == 0.0
        silence(ledger, 4.0)
        assert detector.stamp() > 0.0


def test_a_silence_within_the_grace_starts_the_grace_again(ledger: Ledger, detector: OutageDetector) -> None:
    detector.stamp()
    silence(ledger, 6.0)
    assert detector.stamp() == 0.0
    silence(ledger, 3.0)
    assert detector.stamp() == 0.0


def test_any_reapers_stamp_ends_the_silence(ledger: Ledger, detector: OutageDetector) -> None:
    ledger.redis.hset(OUTAGE_STAMP, mapping={"beat": ledger.scripts.now(), "grace": 0})
    other = OutageDetector(ledger.redis)
    for _ in range(4):
        silence(ledger, 4.0)
        assert other.stamp() > 0.0
    assert detector.stamp() > 0.0


def test_permission_to_expire_leases_ends_soon(ledger: Ledger, detector: OutageDetector) -> None:
    """A call that an outage delayed must not expire leases that could not be renewed meanwhile."""
    ledger.submit(group())
    claim(ledger, "r/g/0")
    expire(ledger, "r/g/0")
    ledger.redis.hset(OUTAGE_STAMP, mapping={"beat": ledger.scripts.now(), "grace": 0})
    until = detector.stamp()
    assert ledger.reap(expire_until=until - OUTAGE_S - 10.0) == []
    assert ledger.reap(expire_until=until) == ["r/g/0"]


def test_live_workers_renew_within_the_grace_and_only_the_dead_ones_jobs_come_back(
    ledger: Ledger, detector: OutageDetector
) -> None:
    ledger.submit(group(), publish_in_s=600)
    for job_id in ("r/g/0", "r/g/1"):
        claim(ledger, job_id)
    ledger.redis.hset(OUTAGE_STAMP, mapping={"beat": ledger.scripts.now(), "grace": 0})
    expire(ledger, "r/g/0", "r/g/1")
    silence(ledger, 60.0)
    assert ledger.reap(expire_until=detector.stamp()) == []
    assert ledger.renew_leases([("r/g/0", 1)]) == []
    silence(ledger, 4.0)
    assert ledger.reap(expire_until=detector.stamp()) == []
    silence(ledger, 4.0)
    assert ledger.reap(expire_until=detector.stamp()) == ["r/g/1"]
    assert reader(ledger).stats()["expired"] == 1


class TestClock:
    """The clock of Redis's host is set: every stored time is that much older, or that far ahead."""

    def move(self, ledger: Ledger, by: float) -> None:
        silence(ledger, by)
        by *= SCALE
        for member, at in ledger.redis.zrange(ledger.keys.leased, 0, -1, withscores=True):
            ledger.redis.zadd(ledger.keys.leased, {member: at - by})
        for job in map(ledger.keys.job, ("r/g/0", "r/g/1")):
            ledger.redis.hset(job, "deadline", float(ledger.redis.hget(job, "deadline")) - by)

    @pytest.fixture
    def moved(self, ledger: Ledger, detector: OutageDetector) -> Callable[[float], None]:
        ledger.submit(group())
        for job_id in ("r/g/0", "r/g/1"):
            claim(ledger, job_id)
        journal(ledger, "r/g/0", 1, [])
        ledger.redis.hset(OUTAGE_STAMP, mapping={"beat": ledger.scripts.now(), "grace": 0})
        return lambda by: self.move(ledger, by)

    @pytest.mark.parametrize("by", [100.0, 7200.0, -100.0, -7200.0])
    def test_no_live_lease_is_lost(
        self, ledger: Ledger, detector: OutageDetector, moved: Callable[[float], None], by: float
    ) -> None:
        moved(by)
        assert ledger.reap(expire_until=detector.stamp()) == []
        before = ledger.scripts.now()
        assert ledger.renew_leases([("r/g/0", 1)], left_s=[1700.0]) == []
        end = ledger.redis.zscore(ledger.keys.leased, "r/g/0#1")
        assert before + 15 <= end <= ledger.scripts.now() + 15  # the worker's own clock tells how far its deadline is
        for _ in range(6):
            silence(ledger, 4.0)
            until = detector.stamp()
            ledger.renew_leases([("r/g/0", 1)])
            # The dead one's lease ends no later than one lease from now, wherever the clock was.
            left = ledger.redis.zscore(ledger.keys.leased, "r/g/1#1") - ledger.scripts.now()
            assert left <= 15
        ledger.redis.zadd(ledger.keys.leased, {"r/g/1#1": ledger.scripts.now() - 1})
        assert ledger.reap(expire_until=until) == ["r/g/1"]


@pytest.mark.parametrize("damage", ["string", "list", "fields"])
def test_a_damaged_stamp_is_replaced(ledger: Ledger, detector: OutageDetector, damage: str) -> None:
    match damage:
        case "string":
            ledger.redis.set(OUTAGE_STAMP, "garbage")
        case "list":
            ledger.redis.rpush(OUTAGE_STAMP, "garbage")
        case "fields":
            ledger.redis.hset(OUTAGE_STAMP, mapping={"beat": "many", "grace": "inf"})
    assert detector.stamp() == 0.0
    for _ in range(2):
        silence(ledger, 4.0)
        until = detector.stamp()
    assert until > ledger.scripts.now()


def test_a_redis_that_takes_no_writes(ledger: Ledger, detector: OutageDetector) -> None:
    ledger.redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(Unwritable, match="rollq:pulse: NOREPLICAS"):
            detector.stamp()
    finally:
        ledger.redis.config_set("min-replicas-to-write", 0)

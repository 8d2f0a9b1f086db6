"""When leases may expire: after a silence of all reapers, only once live workers have had the time
to renew.

A test makes the silence by setting the last reap back; to the script, Redis's clock has gone on.
All times are SCALE times as long as in production, so that how long a test takes changes nothing.
"""

import pytest

from rollq.ledger import constants
from rollq.ledger.ledger import Ledger
from tests.rollq.other_constants import change_constants
from tests.rollq.samples import claim, group, journal, reader

SCALE = 100.0
OUTAGE_S, GRACE_S = constants.OUTAGE_S * SCALE, constants.GRACE_S * SCALE


@pytest.fixture(autouse=True)
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constants(monkeypatch, OUTAGE_S=OUTAGE_S, GRACE_S=GRACE_S)


@pytest.fixture
def played(ledger: Ledger) -> Ledger:
    """Two jobs are leased, and a reaper was here a moment ago."""
    ledger.submit(group(), send_in_s=600)
    for job_id in ("r/g/0", "r/g/1"):
        claim(ledger, job_id)
    journal(ledger, "r/g/0", "1#token", [])
    ledger.redis.hset(ledger.keys.meta, mapping={"beat": ledger.scripts.now(), "grace": 0})
    return ledger


def silence(ledger: Ledger, seconds: float) -> None:
    """For so many of production's seconds nobody reaped."""
    for name in ("beat", "grace"):
        at = float(ledger.redis.hget(ledger.keys.meta, name))
        ledger.redis.hset(ledger.keys.meta, name, at - seconds * SCALE)


def expire(ledger: Ledger, *job_ids: str) -> None:
    for job_id in job_ids:
        ledger.redis.zadd(ledger.keys.leased, {f"{job_id}#1#token": 1}, xx=True)


def expired(ledger: Ledger) -> list[str]:
    return [message.job_id for message in ledger.reap()]


def test_the_first_reap_ever_counts_as_an_outage(played: Ledger) -> None:
    played.redis.hdel(played.keys.meta, "beat", "grace")
    expire(played, "r/g/1")
    assert expired(played) == []
    silence(played, 4.0)
    assert expired(played) == []
    silence(played, 4.0)
    assert expired(played) == ["r/g/1"]


@pytest.mark.parametrize(
    ("seconds", "is_outage"),
    [(4.9, False), (5.1, True), (3600.0, True)],
)
def test_how_long_an_outage_is(played: Ledger, seconds: float, is_outage: bool) -> None:
    expire(played, "r/g/1")
    silence(played, seconds)
    assert expired(played) == ([] if is_outage else ["r/g/1"])
    if is_outage:
        grace = float(played.redis.hget(played.keys.meta, "grace")) - played.scripts.now()
        assert GRACE_S - 50 < grace <= GRACE_S


def test_a_silence_within_the_grace_starts_the_grace_again(played: Ledger) -> None:
    expire(played, "r/g/1")
    for seconds in (6.0, 3.0, 6.0, 4.0):
        silence(played, seconds)
        assert expired(played) == []
    silence(played, 4.0)
    assert expired(played) == ["r/g/1"]


def test_live_workers_renew_within_the_grace_and_only_the_dead_ones_jobs_come_back(
    played: Ledger,
) -> None:
    expire(played, "r/g/0", "r/g/1")
    silence(played, 60.0)
    assert expired(played) == []
    assert played.renew_leases([("r/g/0", "1#token")]) == []
    silence(played, 4.0)
    assert expired(played) == []
    silence(played, 4.0)
    assert expired(played) == ["r/g/1"]
    assert reader(played).stats()["expired"] == 1

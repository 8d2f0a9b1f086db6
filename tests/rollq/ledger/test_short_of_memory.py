"""A Redis that takes no writes: new work waits, work that is there ends and is handed out, nothing
is lost.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rollq.client.client import Client
from rollq.errors import FailureClass, PullTimeout, Unwritable
from rollq.evaluation.result import Result
from rollq.ledger import evaluations, solve_rates
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import State
from rollq.ledger.versions import Versions
from rollq.trajectory import Header
from rollq.wire.codec import encode_header
from rollq.wire.events import encode_event
from tests.rollq.groups import ack, deliveries, finish_groups, take
from tests.rollq.samples import claim, closed, events, group, job, journal, play, reader, reap

NOBODY = "redis://127.0.0.1:1/0"
RESULT = Result(run="r", name="e", version=None, size=1, tasks=[], left_out=[])


@pytest.fixture
def full(ledger: Ledger) -> Iterator[Callable[[bool], object]]:
    """Says whether Redis is out of memory."""

    def full(now: bool) -> None:
        ledger.redis.config_set("maxmemory", int(now))

    yield full
    full(False)


def test_admission_is_refused_and_changes_nothing(
    ledger: Ledger, full: Callable[[bool], object]
) -> None:
    ledger.submit(group())
    claim(ledger, "r/g/0")
    full(True)
    for refused in (
        lambda: ledger.submit(group("h")),
        lambda: ledger.claim("r/g/1", worker="w", token="t"),
        lambda: Ledger(ledger.redis, "another").pin_tokenizer("a", "b"),
        Ledger(ledger.redis, "another").seal,
    ):
        with pytest.raises(Unwritable, match=r"run (r|another): .*maxmemory"):
            refused()
    full(False)
    stats = reader(ledger).stats()
    assert (stats["submitted"], stats["queued"], stats["leased"]) == (2, 1, 1)


def test_a_run_is_sealed_and_its_short_last_batch_makes_room(
    ledger: Ledger, full: Callable[[bool], object]
) -> None:
    finish_groups(ledger, "a")
    full(True)
    ledger.seal()
    (taken,) = take(ledger, 2, "t")
    ack(ledger, "t", taken.id)
    full(False)
    assert (reader(ledger).stats()["sealed"], reader(ledger).stats()["delivered"]) == (True, 2)


def test_a_claim_that_sets_a_journal_aside_waits_too(
    ledger: Ledger, full: Callable[[bool], object]
) -> None:
    ledger.submit(group())
    claim(ledger, "r/g/0")
    journal(ledger, "r/g/0", "1#token", events()[:3])
    ledger.fail("r/g/0", "1#token", FailureClass.ENV, "x")
    full(True)
    with pytest.raises(Unwritable):
        ledger.claim("r/g/0", worker="w", token="b")
    assert len(ledger.journal("r/g/0")) == 4
    full(False)
    assert claim(ledger, "r/g/0", "b").set_aside


def test_what_ends_and_hands_out_work_goes_through(
    ledger: Ledger, full: Callable[[bool], object]
) -> None:
    ledger.submit(group("a"))
    ledger.submit(group("b"), send_in_s=0)
    play(ledger, "r/a/0")
    claim(ledger, "r/a/1")
    claim(ledger, "r/b/0")
    claim(ledger, "r/b/1")
    ledger.redis.zadd(ledger.keys.leased, {"r/a/1#1#token": ledger.scripts.now() + 1})
    reap(ledger)
    full(True)
    index = journal(ledger, "r/a/1", "1#token", events()[:5])  # nothing else could make room
    assert ledger.renew_leases([("r/a/1", "1#token"), ("r/b/0", "1#token")]) == []
    assert ledger.redis.zscore(ledger.keys.leased, "r/a/1#1#token") - ledger.scripts.now() > 10
    ledger.complete("r/a/1", "1#token", index, [encode_event(closed(), "r/a/1")])
    ledger.release("r/b/0", "1#token")
    ledger.fail("r/b/1", "1#token", FailureClass.WORKER, "Redis takes no writes")
    assert reap(ledger) == ["r/b/0"]
    ledger.confirm(["r/b/0"])
    ledger.resend("r/b/0")
    (taken,) = take(ledger, 1, "t")
    deliveries(ledger).renew_holds(["t"], 100.0)
    Versions(ledger.redis, "r").publish(1, "1", "p")  # the trainer acknowledges after it
    solve_rates.SolveRateStore(ledger.scripts).add("shop.train.0", "a", 0.5)  # also after these two
    evaluations.EvaluationStore(ledger.scripts).save(RESULT)
    ack(ledger, "t", taken.id)  # which makes room
    DeadLetters(ledger.redis, "r").cancel("r/b/0")
    DeadLetters(ledger.redis, "r").discard("r/b/0")
    full(False)
    stats = reader(ledger).stats()
    assert (stats["done"], stats["delivered"], stats["queued"], stats["dead"]) == (2, 2, 1, 1)
    assert ledger.redis.zscore(ledger.keys.queued, "r/b/0") is None
    assert solve_rates.SolveRateStore(ledger.scripts).latest() == {"shop.train.0": ("a", 0.5)}
    assert evaluations.EvaluationStore(ledger.scripts).load("e") == RESULT


def test_an_expired_lease_is_brought_back(ledger: Ledger, full: Callable[[bool], object]) -> None:
    ledger.submit(group())
    claim(ledger, "r/g/0")
    reap(ledger)
    ledger.redis.zadd(ledger.keys.leased, {"r/g/0#1#token": 1})
    full(True)
    assert reap(ledger) == ["r/g/0"]
    assert reader(ledger).job("r/g/0").failures == {FailureClass.WORKER: 1}  # type: ignore[union-attr]


def test_submit_waits_and_says_so(
    redis_url: str, ledger: Ledger, full: Callable[[bool], object], caplog: pytest.LogCaptureFixture
) -> None:
    full(True)

    def produce() -> None:
        with Client(redis_url, run="r", broker_url=NOBODY) as producer:
            producer.submit([job(0, "a"), job(0, "b")])
            producer.seal()

    thread = threading.Thread(target=produce)
    with caplog.at_level(logging.WARNING, "rollq"):
        thread.start()
        while not caplog.records:
            assert thread.is_alive()
            time.sleep(0.01)
        assert reader(ledger).stats()["submitted"] == 0
        full(False)
        thread.join(30)
    assert not thread.is_alive()
    assert reader(ledger).stats()["submitted"] == 4
    assert reader(ledger).standing().sealed
    assert "maxmemory" in caplog.text
    assert "Nothing is lost; trying again" in caplog.text


def test_a_replica_is_read_only(
    ledger: Ledger, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that asks again and again says it once."""
    finish_groups(ledger, "a")
    ledger.submit(group("b"))
    ledger.redis.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(Unwritable, match=r"(?i)read.only"):
            ledger.claim("r/b/0", worker="w", token="t")
        with client.consumer() as consumer:
            for _ in range(2):
                with pytest.raises(PullTimeout, match=r"(?i)read.only"):
                    consumer.next(1, 0.1)
        assert len([record for record in caplog.records if "take" in record.message]) == 1
    finally:
        ledger.redis.replicaof("NO", "ONE")
    assert reader(ledger).job("r/b/0").state is State.QUEUED  # type: ignore[union-attr]
    ledger.append("r/b/0", claim(ledger, "r/b/0").lease, 0, [encode_header(Header(attempt=1))])
    assert [taken.id for taken in take(ledger, 1, "t")] == ["a"]

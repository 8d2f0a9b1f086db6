"""Who waits for whom: said on both sides, from a real Redis in the state of each wait."""

import logging
import threading
from dataclasses import replace

import pytest
import redis

from rollq.client import waits
from rollq.client.client import Client, internals
from rollq.client.waits import WaitLog, explain, holdup
from rollq.errors import FailureClass, PullTimeout
from rollq.job import Purpose
from rollq.ledger.constants import CONFIRMED_S, LONGEST_BACKOFF_S
from rollq.ledger.keys import RUNS
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import (
    AWAY,
    OUTDATED,
    PAUSED,
    READY,
    SILENT_S,
    STALLED,
    live_workers,
)
from rollq.snapshot import fleet
from rollq.snapshot.diagnosis import other_runs
from tests.rollq.client.fleets import live, used
from tests.rollq.groups import drop_group, finish_groups, play_groups
from tests.rollq.samples import claim, group, job, reader
from tests.waiting import until


def waiting(client: Client, *purpose: Purpose, **side: int) -> str:
    return explain(internals(client).reader, *purpose, **side)


def test_a_redis_that_a_script_keeps_busy_is_the_explanation(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises nothing: the explanation of a wait must not end the wait."""

    def busy() -> None:
        raise redis.ResponseError(
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL."
        )

    look = reader(ledger)
    monkeypatch.setattr(look.redis, "time", busy)
    assert "busy with a long script" in explain(look) and holdup(look) == explain(look)


def test_a_consumer_that_acknowledges_one_step_late_and_a_producer_wait_for_each_other(
    redis_url: str,
    client: Client,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "FIRST_S", 0.0)
    finish_groups(ledger, *"abcd")
    producer = Client(redis_url, run="r")
    thread = threading.Thread(target=producer.submit, args=([job(0, "e")],), kwargs={"ahead": 4})
    thread.start()
    until(lambda: reader(ledger).standing().full)
    with client.consumer() as consumer:
        batch = consumer.next(4)
        with pytest.raises(PullTimeout) as timeout:
            consumer.next(4, timeout=0.2)
        assert batch is not None
        batch.ack()
    thread.join(60)
    producer.close()
    said = (
        "run r: a producer waits while 4 groups are unacknowledged (0 open, 0 ready, 4 "
        "held), and a consumer waits for"
        " 4 groups before it acknowledges: acknowledge each batch before you ask for the "
        "next one, ask for fewer"
        " groups, or submit with an `ahead` of at least 8"
    )
    assert said in caplog.text
    assert said.removeprefix("run r: ") in str(timeout.value)


def test_nobody_reads(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "a", "b")
    assert waiting(client) == ""  # nobody waits
    said = waiting(client, ahead=2)
    assert "a producer waits while 2 groups are unacknowledged (0 open, 2 ready, 0 held)" in said
    assert "no consumer takes them: start a trainer or `rollq pull --run r --groups 2`" in said
    assert "--purpose eval" not in said
    finish_groups(ledger, "e", purpose=Purpose.EVAL)
    assert "`rollq pull --run r --groups 1 --purpose eval`" in waiting(
        client, Purpose.EVAL, ahead=1
    )
    assert ledger.submit(group("c"), ahead=2).full
    assert waiting(client) == said  # others know it, too


def test_no_producer_waits_for_a_sealed_run(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "a", "b")
    assert ledger.submit(group("c"), ahead=2).full
    ledger.seal()
    assert "a producer waits" not in waiting(client, wanted=3)


def test_a_consumer_holds_what_a_producer_waits_for(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "a", "b")
    with client.consumer() as consumer:
        assert consumer.next(2)
        assert "the consumer that holds 2 of them has to acknowledge its batch" in waiting(
            client, ahead=2
        )


def test_a_run_that_does_not_exist(redis_url: str, client: Client, ledger: Ledger) -> None:
    assert "it does not exist yet; there are no runs yet" in waiting(client, wanted=1)
    ledger.submit(group())
    with Client(redis_url, run="q") as mistyped:
        assert waiting(mistyped, wanted=1).startswith("run q: it does not exist yet; runs there: r")
        ledger.redis.zadd(RUNS, {"q": 1})
        assert waiting(mistyped, wanted=1).startswith("run q: nothing was submitted to it yet")


def test_the_run_that_was_meant_is_named() -> None:
    there = [f"retail-{n}" for n in range(7)]
    assert other_runs("retial-3", there).startswith(
        "did you mean 'retail-3'? runs there: retail-6, retail-5, "
    )
    assert other_runs("retial-3", there).endswith("and 2 more (rollq stats lists them)")
    assert other_runs("x", ["retail"]) == "runs there: retail"


def test_nothing_is_left(client: Client, ledger: Ledger) -> None:
    """Everything was acknowledged or dropped, and the run is not sealed, or its seal was lost."""
    finish_groups(ledger, "a", "b")
    next(client.batches(2)).ack()
    said = waiting(client, wanted=1)
    assert (
        "a consumer waits for 1 group, and no group is being played: 0 open, 0 ready, 0 "
        "held, 2 acknowledged" in said
    )
    assert (
        "seal the run" in said
        and "Redis has lost the seal" in said
        and "rollq jobs list" not in said
    )
    finish_groups(ledger, "c")
    assert "ask for at most 1" in waiting(client, wanted=2)
    ledger.submit(group("d"))
    drop_group(ledger, "d")
    assert "1 dropped. `rollq jobs list r` says why" in waiting(client, wanted=2)
    assert waiting(client, wanted=1) == ""  # it is ready
    with pytest.raises(PullTimeout, match="ask for at most 1"):
        next(client.batches(2, timeout=0.1))


def test_the_groups_are_for_another_purpose(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "a", purpose=Purpose.EVAL)
    assert "its groups are for eval; ask for them with `--purpose eval`" in waiting(
        client, wanted=1
    )
    assert waiting(client, Purpose.EVAL, wanted=1) == ""


def test_another_consumer_holds_the_last_groups(
    redis_url: str, client: Client, ledger: Ledger
) -> None:
    finish_groups(ledger, "a", seal=True)
    with client.consumer() as other:
        assert other.next(1)
        assert "a consumer waits for 1 group of another consumer" in waiting(client, wanted=1)
        assert "Another consumer holds 1 group and has not acknowledged them" in waiting(
            client, wanted=1
        )
        assert waiting(client, wanted=1, own=1) == ""


def test_another_consumer_holds_all_groups_of_a_run_that_is_not_sealed(
    client: Client, ledger: Ledger
) -> None:
    finish_groups(ledger, "a", "b")
    with client.consumer() as other:
        assert other.next(2)
        said = waiting(client, wanted=1)
        assert (
            "Another consumer holds 2 groups and has not acknowledged them "
            "(batch.ack()). They come when" in said
        )
        assert "Another consumer" not in waiting(client, wanted=1, own=2)
        assert "2 groups are held by a consumer that has not acknowledged them yet" in holdup(
            reader(ledger)
        )


@pytest.mark.parametrize(
    "side", [{"wanted": 1}, {"ahead": 1}, {}], ids=["consumer", "producer", "onlooker"]
)
class TestWorkers:
    """The same to all sides: a consumer, a producer, and a person with `rollq stats`."""

    def test_none_is_alive(self, client: Client, ledger: Ledger, side: dict[str, int]) -> None:
        ledger.submit(group())
        assert "no worker is alive: start `rollq worker`" in waiting(client, **side)
        claim(ledger, "r/g/0")
        assert "what dead workers played comes back within 15 s" in waiting(client, **side)
        live(ledger)
        assert waiting(client, **side) == ""

    def test_they_serve_other_queues(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group(queue="qwen"))
        live(ledger)
        live(ledger, "v", queues=("llama",))
        said = waiting(client, **side)
        assert (
            "in queue qwen, and the live workers serve llama, rollq: start `rollq "
            "worker --queues qwen`" in said
        )
        live(ledger, "u", queues=("qwen",))
        assert waiting(client, **side) == ""

    def test_they_have_another_tokenizer(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        client.pin_tokenizer("t2", "c1")
        ledger.submit(group())
        live(ledger)
        said = waiting(client, **side)
        assert (
            "r: no live worker fits: w cannot play it: it has tokenizer t1 and chat "
            "template c1, the run t2" in said
        )
        assert "start it with the run's `--tokenizer`" in said

    def test_they_have_no_file_that_the_run_needs(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group())
        why = (
            "environment 'game@0123456789ab': there is no such file here; give every "
            "worker the same file"
        )
        live(ledger, left_alone=(("r", why), ("s", "another reason")))
        assert f"r: no live worker fits: w cannot play it: {why}. 2 jobs are queued" in waiting(
            client, **side
        )
        live(ledger, "v", left_alone=(("s", "another reason"),))
        assert waiting(client, **side) == ""
        live(ledger, "v", left_alone=(("r", why),))
        assert f"no live worker fits: v, w cannot play it: {why}. 2 jobs" in waiting(client, **side)
        claim(
            ledger, "r/g/0"
        )  # it may be of another environment, of which one of them has the file
        assert waiting(client, **side) == ""

    def test_their_engine_is_away(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group())
        live(ledger, engine=AWAY)
        assert "the engine of the only live worker that may play them is away" in waiting(
            client, **side
        )
        live(ledger, "v")
        assert waiting(client, **side) == ""

    def test_nothing_was_heard_of_them(
        self, client: Client, ledger: Ledger, side: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after kill -9 of the only worker, before its entry is gone."""
        ledger.submit(group())
        claim(ledger, "r/g/0")
        live(ledger)
        live(ledger, "v")
        ages = {"w": SILENT_S, "v": SILENT_S + 2}
        found = [replace(worker, age_s=ages[worker.name]) for worker in live_workers(ledger.redis)]
        monkeypatch.setattr(fleet, "live_workers", lambda client: found)
        said = waiting(client, **side)
        assert (
            f"nothing was heard of all 2 live workers for {SILENT_S + 2} s: if it died, "
            "start `rollq worker`" in said
        )
        ages["v"] = 0
        found[:] = [replace(worker, age_s=ages[worker.name]) for worker in found]
        assert waiting(client, **side) == ""

    def test_their_engines_are_paused(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group())
        live(ledger, engines=(used("http://a", PAUSED), used("http://b", AWAY)))
        said = waiting(client, **side)
        assert (
            "r: The engine at http://b (1 of 2) is away: start it, or take it off the list" in said
        )
        assert (
            "The engine at http://a (1 of 2) is paused, as for new weights. If no "
            "update is under way" in said
        )
        live(ledger, engines=(used("http://a", STALLED),))
        said = waiting(client, **side)
        assert (
            "The engine at http://a has requests, and has shown no progress for seconds. It may be"
            in said
        )
        live(ledger, engines=(used("http://a", OUTDATED),))
        said = waiting(client, **side)
        assert (
            "The engine at http://a serves weights that are older than what a run has published"
            in said
        )
        live(ledger, "v", engines=(used("http://a", PAUSED), used("http://c", READY)))
        assert waiting(client, **side) == ""

    def test_their_adapter_is_not_published(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group(adapter="math"))
        live(ledger)
        said = waiting(client, **side)
        assert (
            "no version of their adapter math is published: `rollq engines sync "
            "--adapter math --path DIR" in said
        )
        live(ledger, engines=(used("http://a", OUTDATED),))  # of jobs that are pinned to a version
        assert "or lacks a run's adapter" in waiting(client, **side)
        live(ledger)
        client.publish(0)
        assert waiting(client, **side) == ""

    def test_the_broker_gets_no_messages(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group())
        live(ledger)
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": reader(ledger).scripts.now() - 40})
        assert "for 40 s no message of a queued job has reached the broker: check" in waiting(
            client, **side
        )

    def test_what_was_interrupted_is_not_late(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        """It is due at once, and no time says since when."""
        ledger.submit(group())
        live(ledger)
        held = claim(ledger, "r/g/0")
        ledger.fail(held.job.id, held.lease, FailureClass.ENV, "it broke")
        assert 0 < float(ledger.redis.zscore(ledger.keys.queued, "r/g/0") or 0) < 1
        assert waiting(client, **side) == ""

    def test_workers_that_cannot_register_are_not_called_dead(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.redis.config_set("maxmemory", 1)
        try:
            assert waiting(client, **side).startswith("run r: Redis is out of memory (")
        finally:
            ledger.redis.config_set("maxmemory", 0)

    def test_they_get_no_messages(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group())
        live(ledger)
        now = reader(ledger).scripts.now()
        ledger.redis.zadd(
            ledger.keys.queued, {f"r/g/{n}": now + CONFIRMED_S - 40 for n in range(2)}
        )
        said = waiting(client, **side)
        assert (
            "a queued job has had its message at the broker for 40 s, and the only live "
            "worker did not take" in said
        )
        ledger.redis.config_set("maxmemory", 1)
        try:
            assert waiting(client, **side).startswith("run r: Redis is out of memory (")
        finally:
            ledger.redis.config_set("maxmemory", 0)
        live(ledger, busy=1)  # with another run
        assert waiting(client, **side) == ""
        live(ledger)
        ledger.redis.zadd(
            ledger.keys.queued, {f"r/g/{n}": now + LONGEST_BACKOFF_S for n in range(2)}
        )
        assert waiting(client, **side) == ""  # they wait for their backoff

    def test_they_are_busy_with_other_runs(
        self, client: Client, ledger: Ledger, side: dict[str, int]
    ) -> None:
        ledger.submit(group())
        live(ledger, busy=4)
        assert "all 4 slots of the only live worker play other runs" in waiting(client, **side)


def test_a_wait_is_logged_when_it_is_long_and_then_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(waits.time, "monotonic", lambda: clock[0])
    said = [""]
    wait = WaitLog(lambda: said[0])

    def looked(after_s: float, text: str) -> list[str]:
        """What is logged by looks at that time after the first explanation."""
        caplog.clear()
        clock[0], said[0] = waits.FIRST_S + after_s, text
        for _ in range(3):
            wait.look()
        return [record.message for record in caplog.records]

    assert looked(-0.1, "early") == []
    assert looked(0, "") == []
    assert looked(waits.LOOK_S, "1 queued, w-1 is away") == ["1 queued, w-1 is away"]
    assert caplog.records[0].levelno == logging.WARNING
    assert looked(2 * waits.LOOK_S, "23 queued, w-25 is away") == []
    assert looked(3 * waits.LOOK_S, "23 queued, another reason") == ["23 queued, another reason"]
    assert looked(4 * waits.LOOK_S, "2 queued, w-2 is away") == []
    assert looked(waits.LOOK_S + waits.EVERY_S, "2 queued, w-2 is away") == [
        "2 queued, w-2 is away"
    ]


def test_what_cannot_be_read_is_the_explanation(client: Client, ledger: Ledger) -> None:
    ledger.submit(group())
    play_groups(ledger, "g")
    ledger.redis.set(f"{ledger.keys.prefix}held:train", "garbage")
    assert "rollq:{r}:held:train is a string" in waiting(client, wanted=1)
    assert reader(ledger).exists()

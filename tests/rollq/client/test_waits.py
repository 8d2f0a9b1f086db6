"""Long waits are explained to producers and consumers, now and then."""

import logging
import threading

import pytest
import redis

from rollq.client import waits
from rollq.client.client import Client
from rollq.client.waits import WaitLog, explain
from rollq.errors import PullTimeout
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import finish_groups
from tests.rollq.samples import job, reader
from tests.waiting import until


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
    assert "busy with a long script" in explain(look)


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
    said = str(timeout.value)
    assert "acknowledge each batch (batch.ack()) before you ask for the next one" in said
    assert "before you ask for the next one" in caplog.text


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
            wait.log_when_due()
        return [record.message for record in caplog.records]

    assert looked(-0.1, "early") == []
    assert looked(0, "") == []
    assert looked(waits.LOOK_S, "1 queued, w-1 is away") == ["1 queued, w-1 is away"]
    assert caplog.records[0].levelno == logging.WARNING
    assert looked(2 * waits.LOOK_S, "23 queued, w-25 is away") == []
    assert looked(3 * waits.LOOK_S, "23 queued, another reason") == ["23 queued, another reason"]
    assert looked(4 * waits.LOOK_S, "2 queued, w-2 is away") == []
    assert looked(waits.LOOK_S + waits.REPEAT_S, "2 queued, w-2 is away") == [
        "2 queued, w-2 is away"
    ]

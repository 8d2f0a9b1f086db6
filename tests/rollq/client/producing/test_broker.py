"""The messages that a Celery worker gets. A broker that is away costs nothing."""

import base64
import json
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from rollq.client.producing import broker as broker_module
from rollq.client.producing.broker import TASK, Broker
from rollq.ledger.constants import EVAL, INTERRUPTED, NEW
from rollq.ledger.keys import QUEUE
from rollq.ledger.replies import JobMessage
from tests.chaos.redis_proxy import RedisProxy
from tests.conftest import free_port


def new(job_id: str) -> JobMessage:
    return JobMessage(job_id, QUEUE, NEW)


@pytest.fixture
def broker(redis_url: str) -> Iterator[Broker]:
    broker = Broker(redis_url)
    yield broker
    broker.close()


def test_a_message_is_a_job_id_and_nothing_else(broker: Broker, redis_url: str) -> None:
    assert broker.backlog() == {QUEUE: 0}
    assert broker.send([new("r/g/0"), new("r/g/1")]) == ["r/g/0", "r/g/1"]
    assert broker.backlog() == {QUEUE: 2}
    with redis.Redis.from_url(redis_url) as client:
        text = client.rpop(f"{QUEUE}\x06\x16{NEW}")
    assert len(text) < 500  # type: ignore[arg-type]  # each queued job has one in Redis's memory
    message = json.loads(text)  # type: ignore[arg-type]
    headers = message["headers"]
    assert headers.pop("id")
    assert headers == {"lang": "py", "task": TASK, "argsrepr": "r/g/0"}
    assert message["content-type"] == "application/json"
    assert json.loads(base64.b64decode(message["body"])) == [["r/g/0"], {}, {}]


def test_each_queue_and_priority_is_a_list_of_its_own(broker: Broker, redis_url: str) -> None:
    sent = [
        JobMessage("r/new/0", "a", NEW),
        JobMessage("r/eval/0", "a", EVAL),
        JobMessage("r/interrupted/0", "b", INTERRUPTED),
    ]
    assert len(broker.send(sent)) == 3
    assert broker.backlog(["a", "b", QUEUE]) == {"a": 2, "b": 1, QUEUE: 0}
    with redis.Redis.from_url(redis_url) as client:
        found = {
            key: client.llen(key) for key in ("rollq.a\x06\x166", "rollq.a\x06\x163", "rollq.b")
        }
    assert set(found.values()) == {1}


def test_counting_opens_no_connection_each_time(broker: Broker, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        broker.backlog()
        before = client.info("stats")["total_connections_received"]  # type: ignore[index]
        for _ in range(10):
            assert broker.backlog([QUEUE, "a"]) == {QUEUE: 0, "a": 0}
        assert client.info("stats")["total_connections_received"] == before  # type: ignore[index]


def test_a_broker_that_is_away_raises_nothing_and_is_not_tried_for_a_while() -> None:
    broker = Broker("redis://:SECRET@127.0.0.1:1/0")
    assert broker.send([new("r/g/0")]) == []
    assert broker.error
    assert "SECRET" not in broker.error
    assert broker.backlog() is None
    assert broker.send([new("r/g/0")]) == []
    broker.close()


def test_a_connection_that_died_in_silence_is_replaced(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "SOCKET_TIMEOUT_S", 0.5)
    monkeypatch.setattr(broker_module, "PAUSE_S", 0.1)
    proxy = RedisProxy(free_port(), int(redis_url.rpartition(":")[2].partition("/")[0]))
    broker = Broker(proxy.url)
    try:
        assert broker.send([new("r/g/0")]) and broker.backlog() == {QUEUE: 1}
        assert proxy.silence()
        assert broker.send([new("r/g/1")]) == []
        time.sleep(0.2)
        assert broker.send([new("r/g/1")]) == ["r/g/1"]
        assert broker.backlog() == {QUEUE: 2}
    finally:
        broker.close()
        proxy.close()


def test_without_celery_nothing_is_sent(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    broker = Broker(redis_url)
    assert not broker.available
    assert broker.send([new("r/g/0")]) == []
    assert broker.backlog() is None
    broker.close()


def test_a_handler_of_a_signal_may_close_it_while_it_begins(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(redis_url)
    made = broker_module._app

    def interrupted(url: str) -> object:
        broker.close()  # as a handler does, in the thread that it interrupts
        return made(url)

    monkeypatch.setattr(broker_module, "_app", interrupted)
    sending = threading.Thread(target=broker.send, args=[[new("r/g/0")]], daemon=True)
    sending.start()
    sending.join(20)
    assert not sending.is_alive()
    broker.close()

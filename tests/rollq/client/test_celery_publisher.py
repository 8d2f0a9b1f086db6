"""The messages that a Celery worker gets. A broker that is away costs nothing."""

import base64
import json

import pytest
import redis

from rollq.client.celery_publisher import TASK, Publisher
from rollq.ledger.keys import QUEUE


def test_a_message_is_a_job_id_and_nothing_else(redis_url: str) -> None:
    publisher = Publisher(redis_url)
    assert publisher.backlog() == 0
    assert publisher.publish(["r/g/0", "r/g/1"]) == ["r/g/0", "r/g/1"]
    assert publisher.backlog() == 2
    client = redis.Redis.from_url(redis_url)
    message = json.loads(client.rpop(QUEUE))
    headers = message["headers"]
    assert (headers["task"], headers["argsrepr"], headers["kwargsrepr"]) == (TASK, "r/g/0", "")
    assert headers["ignore_result"] is True
    assert message["content-type"] == "application/json"
    assert json.loads(base64.b64decode(message["body"]))[:2] == [["r/g/0"], {}]
    client.close()
    publisher.close()


def test_a_broker_that_is_away_raises_nothing_and_is_not_tried_for_a_while() -> None:
    publisher = Publisher("redis://:SECRET@127.0.0.1:1/0")
    assert publisher.publish(["r/g/0"]) == []
    assert publisher.error
    assert "SECRET" not in publisher.error
    assert publisher.backlog() is None
    assert publisher.publish(["r/g/0"]) == []
    publisher.close()


def test_without_celery_nothing_is_published(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    publisher = Publisher(redis_url)
    assert not publisher.available
    assert publisher.publish(["r/g/0"]) == []
    assert publisher.backlog() is None
    publisher.close()

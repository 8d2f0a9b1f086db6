"""The broker's transport survives junk: good messages still arrive, and it raises nothing that ends a worker."""

import logging
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
import redis
from redis.exceptions import ResponseError

from rollq.ledger.keys import QUEUE
from rollq_worker.process.kombu_transport import Transport

KEYS = [QUEUE, f"{QUEUE}\x06\x163", f"_kombu.binding.{QUEUE}", "unacked", "unacked_index"]


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def connection(redis_url: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(redis_url, transport=Transport) as connection:
        yield connection


class Consumer:
    """What a worker does with its connection."""

    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection
        self.queue = kombu.Queue(QUEUE, kombu.Exchange(QUEUE), routing_key=QUEUE, channel=connection.default_channel)
        self.queue.declare()
        self.heard: list[Any] = []

    def _hear(self, body: Any, message: Any) -> None:
        message.ack()
        self.heard.append(body)

    def send(self, body: Any) -> None:
        self.connection.Producer().publish(body, exchange=self.queue.exchange, routing_key=QUEUE, serializer="json")

    def hear(self, body: Any) -> None:
        """Read messages until this one is there."""
        with self.connection.Consumer([self.queue], callbacks=[self._hear], accept=["json"]):
            for _ in range(40):
                try:
                    self.connection.drain_events(timeout=0.5)
                except TimeoutError:
                    self.send(body)  # as the ledger's outbox does
                if body in self.heard:
                    return
        pytest.fail(f"{body!r} never came; {self.heard}")


def test_junk_is_dropped(connection: kombu.Connection, client: Any, caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(connection)
    junk = (b"x", b"{", b"[]", b"null", b"1", b'{"body": "!!!"}', b"\xff\xfe", b"[" * 100_000, b'{"properties": 1}')
    client.rpush(QUEUE, *junk)
    consumer.send("sound")
    consumer.hear("sound")
    assert consumer.heard == ["sound"]
    assert len([record for record in caplog.records if "dropping a broker message" in record.message]) == len(junk)
    assert max(len(record.getMessage()) for record in caplog.records) < 300  # it may hold anything


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_another_type_is_renamed(
    connection: kombu.Connection, client: Any, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    consumer = Consumer(connection)
    consumer.send("before")
    consumer.hear("before")
    client.delete(key)
    client.set(key, "theirs")
    consumer.hear("after")
    if client.exists(key):
        Consumer(connection)  # the next worker to start meets it
    assert client.type(key) != b"string"
    assert client.get(f"{key}.damaged") == b"theirs"
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"the broker's key {key} was a string where a" in record.message


def test_other_refusals_are_not_hidden(connection: kombu.Connection, client: Any) -> None:
    channel = connection.default_channel

    def refused() -> None:
        raise ResponseError("NOPERM this user has no permissions")

    with pytest.raises(ResponseError, match="NOPERM"):
        channel.with_repair(refused)

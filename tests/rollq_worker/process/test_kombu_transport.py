"""The broker's transport survives junk and lost connections: good messages still arrive, and nothing ends a worker."""

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis
from kombu.asynchronous import Hub
from kombu.utils.compat import fileno
from redis.exceptions import ResponseError

from rollq.client.celery_publisher import TASK, broker_settings
from rollq.ledger.keys import QUEUE, celery_queue
from rollq_worker.process import kombu_transport
from rollq_worker.process.kombu_transport import OPTIONS, Connection, SentinelChannel, SentinelTransport, Transport
from tests.e2e.own_redis import OwnRedis

OTHER = celery_queue("other")
KEYS = [
    QUEUE,
    f"{QUEUE}\x06\x163",
    f"{OTHER}\x06\x166",
    f"_kombu.binding.{QUEUE}",
    f"_kombu.binding.{OTHER}",
    f"_kombu.binding_permanent.{QUEUE}",
]


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def connection(redis_url: str) -> Iterator[kombu.Connection]:
    options = broker_settings(redis_url, **OPTIONS)["broker_transport_options"]
    with kombu.Connection(redis_url, transport=Transport, transport_options=options) as connection:
        yield connection


class Consumer:
    """What a worker does with its connection. It consumes from two queues."""

    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection
        channel = connection.default_channel
        self.queues = [kombu.Queue(n, kombu.Exchange(n), routing_key=n, channel=channel) for n in (QUEUE, OTHER)]
        for queue in self.queues:
            queue.declare()
        self.heard: list[str] = []

    def _hear(self, body: Any, message: Any) -> None:
        message.ack()
        self.heard.append(body[0][0])

    def send(self, job_id: str, *, headers: Any = None, parts: Any = None, queue: str = QUEUE, **options: Any) -> None:
        body, as_json = [[job_id], {}, parts or {}], {"serializer": "json"}
        self.connection.Producer().publish(
            body if "content_type" not in options else b"any bytes",
            headers={"task": TASK, "id": job_id, **(headers or {})},
            routing_key=queue,
            **({} if "content_type" in options else as_json),
            **options,
        )

    def hear(self, job_id: str) -> None:
        """Read messages until this one is there."""
        with self.consuming():
            for _ in range(40):
                try:
                    self.connection.drain_events(timeout=0.5)
                except TimeoutError:
                    self.send(job_id)  # as the ledger's outbox does
                if job_id in self.heard:
                    return
        pytest.fail(f"{job_id} never came; {self.heard}")

    def consuming(self) -> kombu.Consumer:
        return self.connection.Consumer(self.queues, callbacks=[self._hear], accept=["json"])


def test_junk_is_dropped(connection: kombu.Connection, client: Any, caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(connection)
    junk = (b"x", b"{", b"[]", b"null", b"1", b'{"body": "!!!"}', b"\xff\xfe", b"[" * 100_000, b'{"properties": 1}')
    client.rpush(QUEUE, *junk)
    consumer.send("sound")
    consumer.hear("sound")
    assert consumer.heard == ["sound"]
    assert len([record for record in caplog.records if "dropping a broker message" in record.message]) == len(junk)
    assert max(len(record.getMessage()) for record in caplog.records) < 300  # it may hold anything


UNWANTED: list[tuple[str, dict[str, Any]]] = [
    ("another task", {"headers": {"task": "celery.backend_cleanup"}}),
    ("it has eta", {"headers": {"eta": "2036-01-01T00:00:00+00:00"}}),
    ("it has expires", {"headers": {"expires": "2036-01-01T00:00:00+00:00"}}),
    ("it has timelimit", {"headers": {"timelimit": [None, 1]}}),
    ("it has compression", {"compression": "gzip"}),
    ("it has no id", {"headers": {"id": [1]}}),
    ("it is not JSON", {"content_type": "application/data", "content_encoding": "zlib"}),
    ("it is not JSON", {"content_type": "application/x-python-serialize", "content_encoding": "binary"}),
    ("it has callbacks", {"parts": {"callbacks": [{"task": TASK, "args": ["r/g/1"]}]}}),
    ("it has errbacks", {"parts": {"errbacks": [{"task": TASK, "args": ["r/g/1"]}]}}),
    ("it has chain", {"parts": {"chain": [{"task": TASK, "args": ["r/g/1"]}]}}),
    ("it has chord", {"parts": {"chord": {"task": TASK, "args": ["r/g/1"]}}}),
]


@pytest.mark.parametrize(("why", "message"), UNWANTED, ids=[why for why, _ in UNWANTED])
def test_a_message_that_asks_for_more_is_refused(
    connection: kombu.Connection, caplog: pytest.LogCaptureFixture, why: str, message: dict[str, Any]
) -> None:
    consumer = Consumer(connection)
    consumer.send("unwanted", **message)
    consumer.send("wanted", headers={"eta": None, "expires": None, "timelimit": [None, None]}, parts={"chain": None})
    consumer.hear("wanted")
    assert consumer.heard == ["wanted"]
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"no job of rollq: {why}:" in record.getMessage()


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
        Consumer(connection.clone())  # the next worker to start meets it
    assert client.type(key) != b"string"
    assert client.get(f"{key}.damaged") == b"theirs"
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"the broker's key {key} was a string where a" in record.message


def test_a_message_that_kombu_cannot_inflate_is_refused_and_not_logged(
    connection: kombu.Connection, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """kombu notes such an error in the message, and Celery logs the message."""
    consumer = Consumer(connection)
    consumer.send("secret", headers={"compression": [None, None]})
    consumer.send("wanted")
    consumer.hear("wanted")
    assert consumer.heard == ["wanted"]
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "no job of rollq" in record.getMessage()


def test_a_known_socket_is_added_to_the_loop_once(connection: kombu.Connection, client: Any) -> None:
    """Kombu adds its sockets before each wait, a system call each. One that it took out comes back."""
    hub, heard = Hub(), Consumer(connection)
    registered: list[int] = []
    register = hub.poller.register
    hub.poller.register = lambda fd, flags: registered.append(fileno(fd)) or register(fd, flags)  # type: ignore[func-returns-value]
    with heard.consuming():
        connection.register_with_event_loop(hub)
        loop = hub.create_loop()
        for name in ("a", "b", "c"):
            heard.send(name)
            while name not in heard.heard:
                next(loop)
        (socket_,) = connection.transport.cycle.fds
        assert registered.count(socket_) == 2  # by kombu's own register, and as a reader
        hub.remove_reader(socket_)
        heard.send("d")
        while "d" not in heard.heard:
            next(loop)
    hub.close()


def test_other_refusals_are_not_hidden(connection: kombu.Connection, client: Any) -> None:
    channel = connection.default_channel

    def refused() -> None:
        raise ResponseError("NOPERM this user has no permissions")

    with pytest.raises(ResponseError, match="NOPERM"):
        channel.with_repair(refused)


def test_lower_priorities_come_first_over_all_queues(connection: kombu.Connection) -> None:
    consumer = Consumer(connection)
    for name, priority, queue in (("a6", 6, QUEUE), ("b6", 6, QUEUE), ("c3", 3, OTHER), ("d0", 0, OTHER)):
        consumer.send(name, priority=priority, queue=queue)
    consumer.hear("b6")
    assert consumer.heard == ["d0", "c3", "a6", "b6"]


def test_nothing_of_a_message_is_kept_in_redis(connection: kombu.Connection, client: Any) -> None:
    consumer = Consumer(connection)
    consumer.send("taken")
    consumer.hear("taken")
    assert not [key for key in client.scan_iter() if b"binding" not in key]


@pytest.mark.parametrize("how", ["closed", "collected"])
def test_a_late_acknowledgement_raises_nothing(connection: kombu.Connection, how: str) -> None:
    """A thread starts an episode, and acknowledges its message, after the main thread has given the connection up."""
    messages: list[Any] = []
    consumer = Consumer(connection)
    consumer.send("late")
    with connection.Consumer(consumer.queues, on_message=messages.append, accept=["json"]):
        connection.drain_events(timeout=5)
    known = connection.connection_errors
    connection.collect() if how == "collected" else connection.close()
    messages[0].ack_log_error(logging.getLogger(), known)
    assert messages[0].acknowledged


def test_a_restart_of_redis_under_load_raises_only_what_celery_expects(tmp_path: Path) -> None:
    """An unacknowledged message ends kombu's clean-up early, and the connection's next channel is left with nothing to
    close itself with: an AttributeError (`hostname`), for which a stock worker ends."""
    store = OwnRedis(tmp_path)
    with kombu.Connection(store.url, transport=Transport) as connection:
        consumer = Consumer(connection)
        consumer.send("started")
        unacknowledged: list[Any] = []
        tasks = connection.Consumer(consumer.queues, on_message=unacknowledged.append, accept=["json"])
        tasks.consume()
        connection.drain_events(timeout=5)
        other = connection.channel()
        own = kombu.Queue("own", kombu.Exchange("all", type="fanout"), auto_delete=True, channel=other)
        kombu.Consumer(other, [own]).consume()
        known = connection.connection_errors
        store.stop(signal.SIGKILL)
        for clean_up in (connection.collect, connection.close, other.close, tasks.cancel):
            with suppress(*known):
                clean_up()
    assert len(unacknowledged) == 1


def test_a_message_that_comes_while_the_wait_ends_goes_back(connection: kombu.Connection, client: Any) -> None:
    """A worker that stops does not wait for Redis to answer, and takes no message with it."""
    consumer = Consumer(connection)
    with consumer.consuming():
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)  # leaves a request for a message behind
        with connection.clone() as other:
            Consumer(other).send("late")
        assert not client.llen(QUEUE)
    assert client.llen(QUEUE) == 1 and not consumer.heard


def test_a_broker_that_takes_no_writes_counts_as_away(
    connection: kombu.Connection, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery then tries again once a second, and not as fast as it can."""
    pauses: list[float] = []
    monkeypatch.setattr(kombu_transport.time, "sleep", pauses.append)
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ConnectionError, match=r"takes no writes.*NOREPLICAS"):
            Consumer(connection).consuming().declare()
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert pauses == [kombu_transport.REFUSED_PAUSE_S]


def test_a_silent_connection_is_given_up(connection: kombu.Connection) -> None:
    channel = connection.default_channel
    keywords = channel.client.connection_pool.connection_kwargs
    assert (keywords["socket_timeout"], keywords["socket_connect_timeout"]) == (5.0, 3.0)
    assert not keywords["health_check_interval"]
    tcp = channel.client.connection_pool.get_connection()._sock
    assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    found = [tcp.getsockopt(socket.IPPROTO_TCP, option) for option in keywords["socket_keepalive_options"]]
    assert found == list(keywords["socket_keepalive_options"].values()) and len(found) >= 3


def test_sentinel_addresses_get_the_same_channels(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu.transport._transport_cache", {})  # another test may have asked before
    kombu_transport.install()
    with kombu.Connection("sentinel://127.0.0.1:1/0", transport_options={"master_name": "m"}) as connection:
        assert isinstance(connection.transport, SentinelTransport)
        assert connection.transport.Channel is SentinelChannel
    assert SentinelTransport.brpop_timeout == Transport.brpop_timeout == kombu_transport.WAIT_S


def test_pauses_between_tries_to_connect_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(kombu.Connection, "_ensure_connection", lambda self, *args, **options: given.update(options))
    with Connection("redis://127.0.0.1:1/0") as connection:
        connection.ensure_connection(None, None)
    assert given == {"interval_start": 1, "interval_step": 1, "interval_max": 1}

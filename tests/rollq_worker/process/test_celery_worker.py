"""A real Celery worker on a real Redis: what it takes first, what cannot hold it up, and what it
survives.
"""

import json
import random
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
import redis

from rollq.client.producing.broker import TASK, Broker
from rollq.errors import RollqError
from rollq.ledger.constants import EVAL, INTERRUPTED, NEW
from rollq.ledger.keys import QUEUE, celery_queue
from rollq.ledger.replies import JobMessage
from rollq.settings import Settings
from rollq_worker.process import celery_app
from tests.chaos.redis_proxy import RedisProxy
from tests.conftest import free_port
from tests.e2e.own_redis import OwnRedis
from tests.waiting import until


class NotingWorker:
    def __init__(self, log: Path, url: str, slots: int, seconds: float, queues: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "tests.rollq_worker.process.noting_worker"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, url, str(slots), str(seconds), queues], stdout=out, stderr=out
            )

    @property
    def said(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait(self, line: str, seconds: float = 60.0) -> None:
        until(lambda: line in self.said or self.process.poll() is not None, seconds)
        assert line in self.said, self.log.read_text()


StartWorker = Callable[..., NotingWorker]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    started: list[NotingWorker] = []

    def start(
        url: str, *, slots: int = 1, seconds: float = 0.0, queues: str = QUEUE
    ) -> NotingWorker:
        worker = NotingWorker(tmp_path / f"worker{len(started)}", url, slots, seconds, queues)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.wait(60)


def send(url: str, *messages: tuple[str, str, int]) -> None:
    broker = Broker(url)
    assert len(broker.send([JobMessage(*message) for message in messages])) == len(messages)
    broker.close()


def test_interrupted_jobs_come_first_then_eval_then_new_ones_of_its_queues(
    redis_url: str, start_worker: StartWorker
) -> None:
    send(
        redis_url,
        ("r/new1/0", QUEUE, NEW),
        ("r/new2/0", QUEUE, NEW),
        ("r/eval/0", QUEUE, EVAL),
        ("r/others/0", "others", INTERRUPTED),
        ("r/interrupted/0", "own", INTERRUPTED),
    )
    worker = start_worker(redis_url, queues=f"{QUEUE},own")
    worker.wait("r/new2/0")
    jobs = [line for line in worker.said if line.startswith("r/")]
    assert jobs == ["r/interrupted/0", "r/eval/0", "r/new1/0", "r/new2/0"]
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen(celery_queue("others")) == 1


def test_other_clients_of_the_broker_cannot_hold_a_worker_up(
    redis_url: str, start_worker: StartWorker
) -> None:
    worker = start_worker(redis_url)
    worker.wait("ready")
    with celery.Celery(broker=redis_url, set_as_current=False) as app:
        assert app.control.rate_limit(TASK, "1/h", reply=True, timeout=1.0) == []
        app.control.shutdown()
        app.send_task(TASK, args=["r/later/0"], queue=QUEUE, countdown=3600.0)
        app.send_task("no.such.task", args=[1], queue=QUEUE)
        app.send_task(TASK, args=["r/now/0"], queue=QUEUE)
    worker.wait("r/now/0")
    assert [line for line in worker.said if line.startswith("r/")] == ["r/now/0"]


NO_PARTS = {
    "body": "W10=",  # []
    "headers": {"id": "x", "task": TASK},
    "content-type": "application/json",
    "properties": {
        "delivery_tag": "t",
        "body_encoding": "base64",
        "delivery_info": {"exchange": QUEUE, "routing_key": QUEUE},
    },
}
JUNK = {
    "no JSON": b"{",
    "no envelope": b"[]",
    "too deep": b"[" * 100_000,
    "no parts": json.dumps(NO_PARTS).encode(),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_message_that_is_no_message_ends_one_worker_in_one_line(
    redis_url: str, start_worker: StartWorker, junk: bytes
) -> None:
    worker = start_worker(redis_url)
    worker.wait("ready")
    with redis.Redis.from_url(redis_url) as client:
        client.rpush(QUEUE, junk)
    assert worker.process.wait(20) == celery_app.EXIT_BROKER
    assert worker.said[-1] == "broken"
    (line,) = [line for line in worker.said if "the worker ends" in line]
    assert f"queues {QUEUE}: " in line and "is gone: start the worker again" in line
    send(redis_url, ("r/after/0", QUEUE, NEW))
    start_worker(redis_url).wait("r/after/0")


def test_a_key_of_another_type_ends_a_worker_in_one_line(
    redis_url: str, start_worker: StartWorker
) -> None:
    worker = start_worker(redis_url, queues=f"{QUEUE},own")
    worker.wait("ready")
    key = f"{celery_queue('own')}\x06\x163"
    with redis.Redis.from_url(redis_url) as client:
        client.set(key, "theirs")
        assert worker.process.wait(20) == celery_app.EXIT_BROKER
        assert client.get(key) == b"theirs"
    (line,) = [line for line in worker.said if "the worker ends" in line]
    assert f"{key!r} is a string where a list belongs. Rename the key" in line
    app = celery_app.bare_app(Settings(broker_url=redis_url, queues=("own",)))
    with pytest.raises(RollqError, match="is a string where a list belongs"):
        celery_app.check_broker(app)


def test_a_broker_that_takes_no_writes_for_a_while_ends_no_worker(
    redis_url: str, start_worker: StartWorker
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        worker = start_worker(redis_url)
        worker.wait("ready")
        client.config_set("min-replicas-to-write", 1)
        try:
            until(lambda: any("NOREPLICAS" in line for line in worker.said), 20)
            time.sleep(3.0)
        finally:
            client.config_set("min-replicas-to-write", 0)
        send(redis_url, ("r/after/0", QUEUE, NEW))
        worker.wait("r/after/0")
    assert len(worker.said) < 30  # about a line a second


def test_a_full_worker_takes_its_next_message_at_once(
    redis_url: str, start_worker: StartWorker
) -> None:
    """The end of a job wakes Celery's loop, which would look again only at its next timer, up to a
    second later.
    """
    worker = start_worker(redis_url)
    worker.wait("ready")
    send(redis_url, *((f"r/{n}/0", QUEUE, NEW) for n in range(40)))
    began = time.monotonic()
    worker.wait("r/39/0")
    assert time.monotonic() - began < 10


def test_flower_hears_of_every_event_of_a_task_and_of_many_in_one_message(
    redis_url: str, start_worker: StartWorker
) -> None:
    worker = start_worker(redis_url, slots=4)
    worker.wait("ready")
    heard: list[dict[str, Any]] = []
    expected = {
        "task-received": 11,
        "task-started": 10,
        "task-succeeded": 9,
        "task-failed": 1,
        "task-refused": 1,
    }
    messages = 0
    with (
        redis.Redis.from_url(redis_url) as client,
        client.pubsub(ignore_subscribe_messages=True) as pubsub,
    ):
        pubsub.psubscribe("*celeryev/task.multi")
        pubsub.get_message(timeout=5.0)  # the answer: it listens from here on
        groups = [*(f"now{n}" for n in range(9)), "dead", "refused"]
        send(redis_url, *((f"r/{group}/0", QUEUE, NEW) for group in groups))

        def hear() -> bool:
            nonlocal messages
            if message := pubsub.get_message(timeout=0.2):
                messages += 1
                heard.extend(json.loads(b64decode(json.loads(message["data"])["body"])))
            return Counter(event["type"] for event in heard) >= Counter(expected)

        until(hear)
    assert Counter(event["type"] for event in heard) == expected
    assert messages < 9
    shown = {event["type"]: event for event in heard}
    assert {event["args"] for event in heard if event["type"] == "task-started"} == {
        f"shop train/17, r/{group}/0, attempt 2" for group in groups[:-1]
    }
    assert shown["task-succeeded"]["result"] == "reward 1.0, done, 9 turns, 1,834 tokens"
    assert (
        shown["task-failed"]["result"]
        == shown["task-failed"]["exception"]
        == "env: ValueError: boom"
    )
    assert shown["task-refused"]["result"] == "refused: leased"
    assert shown["task-succeeded"]["runtime"] >= 0.0


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_worker_takes_jobs_again_after_its_connections_died_in_silence(
    redis_url: str, start_worker: StartWorker, busy: bool
) -> None:
    proxy = RedisProxy(free_port(), int(redis_url.rpartition(":")[2].partition("/")[0]))
    try:
        worker = start_worker(proxy.url, seconds=3.0 if busy else 0.0)
        worker.wait("ready")
        send(redis_url, ("r/before/0", QUEUE, NEW))
        worker.wait("r/before/0")
        assert proxy.silence() >= 2
        send(redis_url, ("r/after/0", QUEUE, NEW))
        worker.wait("r/after/0")
    finally:
        proxy.close()


def test_its_loop_counts_as_stuck_while_there_is_no_broker(
    tmp_path: Path, start_worker: StartWorker
) -> None:
    store = OwnRedis(tmp_path)
    worker = start_worker(store.url)
    worker.wait("ready")
    store.stop(signal.SIGKILL)
    worker.wait("loop stuck")
    store.start()
    try:
        worker.wait("loop turns")
        send(store.url, ("r/after/0", QUEUE, NEW))
        worker.wait("r/after/0")
    finally:
        store.stop(signal.SIGKILL)


def test_restarts_of_redis_under_load_end_no_worker(
    tmp_path: Path, start_worker: StartWorker
) -> None:
    store = OwnRedis(tmp_path)
    try:
        worker = start_worker(store.url, slots=16, seconds=0.02)
        worker.wait("ready")
        for n in range(3):
            send(store.url, *((f"r/load{n}-{m}/0", QUEUE, NEW) for m in range(300)))
            worker.wait(f"r/load{n}-{random.randrange(20, 60)}/0")
            store.stop(random.choice([signal.SIGTERM, signal.SIGKILL]))
            time.sleep(random.uniform(0.0, 1.5))
            store.start()
            send(store.url, (f"r/back{n}/0", QUEUE, INTERRUPTED))
            worker.wait(f"r/back{n}/0")
    finally:
        store.stop(signal.SIGKILL)


def test_a_worker_that_cannot_begin_to_serve_ends_in_one_line(redis_url: str) -> None:
    """Celery would log the error and take messages, without the threads that keep leases."""
    code = """
import sys
from types import SimpleNamespace
from rollq.settings import Settings
from rollq_worker.process import celery_app
settings = Settings(broker_url=sys.argv[1], concurrency=1)
def on_ready(consumer):
    raise RuntimeError("can't start new thread")
app = celery_app.make_app(settings, SimpleNamespace())
broken = lambda: print("broken", flush=True)
worker = celery_app.make_worker(app, settings, "w", on_ready, broken)
worker.start()
sys.exit(worker.exitcode)
"""
    command = [sys.executable, "-c", code, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (celery_app.EXIT_BROKER, "broken\n"), done.stderr
    assert "the worker ends: RuntimeError: can't start new thread" in done.stderr
    assert "Traceback" not in done.stderr

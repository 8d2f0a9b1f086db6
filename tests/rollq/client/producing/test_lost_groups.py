"""Redis comes back without its last writes while a producer lives: no group is lost in silence."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollq.client.client import Client
from rollq.client.producing import submission
from rollq.errors import FailureClass, Gap, LedgerError
from rollq.job import Job
from rollq.ledger.ledger import Ledger
from tests.ledger_of import ledger_of
from tests.rollq.samples import job

GROUPS = 8


class Tail:
    """Redis's last writes: those since `begin`. `lose` takes them away, as a power cut does."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self.begin()

    def begin(self) -> None:
        self._kept = {key: self._redis.dump(key) for key in self._redis.scan_iter()}

    def lose(self) -> None:
        self._redis.flushall()
        for key, dump in self._kept.items():
            self._redis.restore(key, 0, dump)


class Jobs:
    """Jobs that can be read again and again. `events` run when the group of that number is asked
    for the first time.
    """

    def __init__(self, events: dict[int, Callable[[], None]]) -> None:
        self.events = events

    def __iter__(self) -> Iterator[Job]:
        for n in range(GROUPS):
            self.events.pop(n, lambda: None)()
            yield from (job(sample, f"g{n}", task=n) for sample in range(2))


def check_whole(client: Client) -> None:
    stats = client.stats()
    assert (stats["submitted"], stats["groups_open"], stats["queued"]) == (
        2 * GROUPS,
        GROUPS,
        2 * GROUPS,
    )


@pytest.mark.parametrize("source", ["s", None], ids=["source", "none"])
@pytest.mark.parametrize("once", [False, True], ids=["again", "once"])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_producer_goes_back_to_what_redis_lost(
    client: Client,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    source: str | None,
    once: bool,
    kept: int,
) -> None:
    tail = Tail(ledger.redis)
    jobs = Jobs({kept: tail.begin, 6: tail.lose})
    done = client.submit(iter(jobs) if once else jobs, source=source)
    assert (len(done.new), len(done.known)) == (2 * GROUPS, 0)
    check_whole(client)
    assert f"Redis has lost {6 - kept} submitted groups; they are submitted again" in caplog.text


def test_what_is_longer_ago_than_the_producer_remembers_is_read_again(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "RECENT", 2)
    tail = Tail(ledger.redis)
    done = client.submit(Jobs({1: tail.begin, 6: tail.lose}), source="s")
    assert (len(done.new), len(done.known)) == (2 * GROUPS, 0)
    check_whole(client)


@pytest.mark.parametrize("source", ["s", None], ids=["source", "none"])
def test_an_iterator_cannot_be_read_again(
    redis_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, source: str | None
) -> None:
    monkeypatch.setattr(submission, "RECENT", 2)
    tail = Tail(ledger.redis)
    with Client(redis_url, run="r") as client:
        with pytest.raises(
            Gap, match=r"it knows 1 of the 6 that were submitted\. Submit the source again"
        ):
            client.submit(iter(Jobs({1: tail.begin, 6: tail.lose})), source=source)
        client.submit(iter(Jobs({})), source=source)
        check_whole(client)
        client.seal()


def test_a_client_remembers_what_it_submitted_in_earlier_calls(
    client: Client, ledger: Ledger
) -> None:
    tail = Tail(ledger.redis)
    jobs = list(Jobs({}))
    client.submit(jobs[:6])
    tail.begin()
    client.submit(jobs[6:12])
    tail.lose()
    assert client.submit(jobs[12:]).new == [
        f"r/g{n}/{sample}" for n in range(3, 8) for sample in range(2)
    ]
    check_whole(client)


def test_what_was_pinned_for_the_run_is_pinned_again(redis_url: str, ledger: Ledger) -> None:
    tail = Tail(ledger.redis)
    with Client(redis_url, run="r", budgets={FailureClass.ENV: 3}) as client:
        client.pin_tokenizer("t1", "c1")
        client.forget_after(2)
        client.submit(Jobs({6: tail.lose}))
    pinned = ledger.redis.hmget(
        ledger.keys.meta, "budget:env", "tokenizer_hash", "template_hash", "forget_after_s"
    )
    assert pinned == [b"3", b"t1", b"c1", b"172800"]


@pytest.mark.parametrize("then", ["seal", "submit"])
@pytest.mark.parametrize("source", ["s", None], ids=["source", "none"])
def test_what_is_missing_is_not_forgotten_when_redis_goes_away_again(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, source: str | None, then: str
) -> None:
    """It comes back for one group, then goes again, and nobody waits for it."""
    tail = Tail(ledger.redis)
    client.submit(Jobs({2: tail.begin}), source=source)
    tail.lose()
    own = ledger_of(client)
    submit, calls = own.submit, itertools.count()

    def cut_off(*args: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return submit(*args, **options)

    monkeypatch.setattr(own, "submit", cut_off)
    with pytest.raises(KeyboardInterrupt):
        client.submit([job(0, "last", size=1)]) if source is None else client.seal()
    if then == "submit":
        client.submit([job(0, "last", size=1)])
    client.seal()
    stats = client.stats()
    assert (stats["submitted"], stats["sealed"]) == (2 * GROUPS + (then == "submit"), True)


def test_the_place_of_a_client_is_forgotten_on_close(redis_url: str, ledger: Ledger) -> None:
    with Client(redis_url, run="r") as client:
        client.submit(Jobs({}))
        assert ledger.redis.hlen(ledger.keys.sources) == 1
    assert ledger.redis.hlen(ledger.keys.sources) == 0


def test_threads_share_a_client(client: Client) -> None:
    """Their groups enter one by one, in any order, and are not taken for lost."""
    start = threading.Barrier(4)
    failed: list[BaseException] = []

    def produce(thread: int) -> None:
        start.wait(30)
        try:
            for n in range(10):
                client.submit([job(0, f"t{thread}.{n}")])
        except LedgerError as e:
            failed.append(e)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert client.stats()["groups_open"] == 40


def test_a_forked_process_is_a_producer_of_its_own(redis_url: str) -> None:
    """Else what it closes would make its parent believe that Redis has lost the groups."""
    code = """
import os, sys
from rollq import Client, Job
with Client(sys.argv[1], run="r") as client:
    client.submit([Job(env="shop", task=1)])
    child = os.fork()
    if not child:
        client.submit([Job(env="shop", task=task) for task in (2, 3)])
        client.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(client.submit([Job(env="shop", task=4)]).new) == 1
    client.seal()
"""
    command = [sys.executable, "-W", "ignore", "-c", code, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (done.returncode, "lost" in done.stderr) == (0, False), done.stderr
    with Client(redis_url, run="r") as client:
        assert (client.stats()["submitted"], client.stats()["sealed"]) == (4, True)

"""Dropped groups are replaced by fresh ones, a bounded number of times."""

import json
import threading
import time
from collections.abc import Iterator

import pytest

from rollq import cli
from rollq.client.client import Client
from rollq.client.refill import STRIDE, dropped
from rollq.errors import ContractError, LedgerError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import State
from tests.rollq.samples import group, job, play


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, run="r", broker_url="redis://127.0.0.1:1/0") as connected:
        yield connected


def drop(ledger: Ledger, name: str) -> None:
    """One member dies, the other is played: with min_viable = size the group is dropped."""
    DeadLetters(ledger.redis, "r").cancel(f"r/{name}/0")
    play(ledger, f"r/{name}/1")


def test_each_dropped_group_is_replaced_in_turn(client: Client, ledger: Ledger) -> None:
    jobs = [job(0, name, seed=3) for name in ("a", "b", "c")]
    client.submit(jobs)
    drop(ledger, "a")
    drop(ledger, "c")
    play(ledger, "r/b/0")
    play(ledger, "r/b/1")
    found = dropped(client.ledger, [group(name, seed=3) for name in ("a", "b", "c")], 2)
    first = next(found)
    assert [(member.id, member.seed) for member in first] == [("r/a.r1/0", 3 + STRIDE), ("r/a.r1/1", 3 + STRIDE)]
    client.submit(first)
    client.submit(next(found))
    drop(ledger, "a.r1")
    play(ledger, "r/c.r1/0")
    play(ledger, "r/c.r1/1")
    third = next(found)
    assert third[0].id == "r/a.r2/0"
    client.submit(third)
    drop(ledger, "a.r2")
    assert next(found, None) is None  # twice is enough
    stats = client.stats()
    assert (stats["groups_dropped"], stats["groups_ready"], stats["groups_open"]) == (4, 2, 0)
    assert stats["submitted"] == stats["done"] + stats["dead"] == 12


def test_it_waits_for_open_groups_and_finds_its_replacements_again(
    client: Client, ledger: Ledger, redis_url: str
) -> None:
    client.submit([job(0, "a"), job(0, "b")])
    drop(ledger, "a")
    results = []

    def refill() -> None:
        with Client(redis_url, run="r", broker_url="redis://127.0.0.1:1/0") as producer:
            results.append(producer.refill([job(0, "a"), job(0, "b")]))

    for _ in range(2):
        thread = threading.Thread(target=refill)
        thread.start()
        while ledger.job("r/a.r1/0") is None:
            time.sleep(0.01)
        if ledger.job("r/b/0").state is State.QUEUED:  # type: ignore[union-attr]
            assert thread.is_alive()
            for member in ("r/b/0", "r/b/1", "r/a.r1/0", "r/a.r1/1"):
                play(ledger, member)
        thread.join(30)
        assert not thread.is_alive()
    assert [(len(done.new), len(done.known)) for done in results] == [(2, 0), (0, 2)]


def test_what_was_never_submitted_is_an_error(client: Client) -> None:
    with pytest.raises(ContractError, match="group r/a was never submitted"):
        client.refill([job(0, "a")])


def test_a_sealed_run_takes_no_replacement(client: Client, ledger: Ledger) -> None:
    client.submit([job(0, "a")])
    drop(ledger, "a")
    client.seal()
    with pytest.raises(LedgerError, match="sealed"):
        client.refill([job(0, "a")])


def test_submit_refills_and_then_seals(redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-1", "--size", "2", "--redis", redis_url, "--json"]
    assert cli.main(line) == 0
    drop(ledger, "shop.train.0")
    for member in ("r/shop.train.1/0", "r/shop.train.1/1"):
        play(ledger, member)

    def work() -> None:
        while ledger.job("r/shop.train.0.r1/1") is None:
            time.sleep(0.01)
        for sample in range(2):
            play(ledger, f"r/shop.train.0.r1/{sample}")

    worker = threading.Thread(target=work)
    worker.start()
    capsys.readouterr()
    assert cli.main([*line, "--refill", "2", "--seal"]) == 0
    worker.join(30)
    found = json.loads(capsys.readouterr().out)
    assert (found["new"], found["known"], found["refilled"], found["sealed"]) == (0, 4, 2, True)
    assert [taken.id for taken in ledger.take(3, "t")] == ["shop.train.1", "shop.train.0.r1"]

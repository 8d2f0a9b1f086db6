"""What a producer submits: whole groups, nothing twice after a restart, and replacements of dropped
groups.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rollq.client.client import Client
from rollq.client.producing import submission
from rollq.client.producing.submission import replacements, whole_groups
from rollq.errors import ContractError, JobConflict, LedgerError
from rollq.job import SEED_STRIDE, Job
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Cursor, State
from rollq.servers.retry import RetryLoop
from tests.rollq.groups import ack, drop_group, play_groups, take
from tests.rollq.samples import group, job, reader


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, run="r", broker_url="redis://127.0.0.1:1/0") as connected:
        yield connected


def tasks(count: int, **changes: object) -> Iterator[Job]:
    for task in range(count):
        yield job(0, f"g{task}", task=task, **changes)


def scripts_called(ledger: Ledger) -> int:
    stats = ledger.redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_a_restart_skips_the_groups_that_were_submitted(client: Client, ledger: Ledger) -> None:
    client.submit(itertools.islice(tasks(9), 5), source="s")
    before = scripts_called(ledger)
    done = client.submit(tasks(9), source="s")
    assert scripts_called(ledger) - before <= 1 + 2 * 4  # the cursor, and four groups
    assert (len(done.known), len(done.new)) == (10, 8)
    assert done.known[:2] == ["r/g0/0", "r/g0/1"]
    assert client.stats()["submitted"] == 18
    assert client.stats()["resubmitted"] == 10
    assert client.submit(tasks(9), source="s").new == []
    assert client.submit(tasks(9)).new == []  # without a source each is sent, and known


def test_sources_are_independent(client: Client) -> None:
    client.submit(tasks(4), source="s")
    done = client.submit(tasks(6), source="t")
    assert (len(done.known), len(done.new)) == (8, 4)


def test_skipped_groups_need_no_room(client: Client) -> None:
    client.submit(tasks(4), source="s")
    assert len(client.submit(tasks(4), source="s", ahead=1).known) == 8  # it would wait for ever


@pytest.mark.parametrize("other", ["content", "sample", "fewer", "order"])
def test_another_source_under_the_name_is_a_conflict(client: Client, other: str) -> None:
    client.submit(tasks(4), source="s")
    match other:
        case "content":
            jobs = list(tasks(4, seed=1))
        case "sample":
            jobs = [*tasks(3), job(0, "g3", task=3), job(1, "g3", task=3, seed=1)]
        case "fewer":
            jobs = list(tasks(3))
        case _:
            jobs = list(tasks(4))[::-1]
    with pytest.raises(JobConflict, match=r"source s .*use another run"):
        client.submit(jobs, source="s")
    assert client.stats()["submitted"] == 8


def test_a_lone_sample_and_all_samples_are_the_same_source(client: Client) -> None:
    client.submit(tasks(2), source="s")
    written_out = [member for task in range(3) for member in group(f"g{task}", task=task)]
    assert client.submit(written_out, source="s").new == ["r/g2/0", "r/g2/1"]


def test_the_cursor_never_goes_back(ledger: Ledger) -> None:
    ledger.submit(group("a"), source="s", cursor=Cursor(1, 2, "aa"))
    ledger.submit(group("b"), source="s", cursor=Cursor(2, 4, "bb"))
    # A second producer, behind the first.
    ledger.submit(group("a"), source="s", cursor=Cursor(1, 2, "aa"))
    assert ledger.cursor("s") == Cursor(2, 4, "bb")
    assert ledger.cursor("t") == Cursor()


def test_the_cursor_is_deleted_with_the_run(client: Client, ledger: Ledger) -> None:
    client.submit(tasks(2), source="s")
    DeadLetters(ledger.redis, "r").forget_run()
    assert len(client.submit(tasks(2), source="s").new) == 4


def test_each_dropped_group_is_replaced_in_turn(client: Client, ledger: Ledger) -> None:
    jobs = [job(0, name, seed=3) for name in ("a", "b", "c")]
    client.submit(jobs)
    drop_group(ledger, "a")
    drop_group(ledger, "c")
    play_groups(ledger, "b")
    found = replacements(
        reader(ledger), [group(name, seed=3) for name in ("a", "b", "c")], 2, retry=RetryLoop()
    )
    first = next(found)
    seed = 3 + SEED_STRIDE
    assert [(member.id, member.seed) for member in first] == [
        ("r/a.r1/0", seed),
        ("r/a.r1/1", seed),
    ]
    client.submit(first)
    client.submit(next(found))
    drop_group(ledger, "a.r1")
    play_groups(ledger, "c.r1")
    third = next(found)
    assert third[0].id == "r/a.r2/0"
    client.submit(third)
    drop_group(ledger, "a.r2")
    assert next(found, None) is None  # twice is enough
    stats = client.stats()
    assert (stats["groups_dropped"], stats["groups_ready"], stats["groups_open"]) == (4, 2, 0)
    assert stats["submitted"] == stats["done"] + stats["dead"] == 12


def test_refill_waits_for_open_groups_and_finds_its_replacements_again(
    client: Client, ledger: Ledger, redis_url: str
) -> None:
    client.submit([job(0, "a"), job(0, "b")])
    drop_group(ledger, "a")
    results = []

    def refill() -> None:
        with Client(redis_url, run="r", broker_url="redis://127.0.0.1:1/0") as producer:
            results.append(producer.refill([job(0, "a"), job(0, "b")]))

    for _ in range(2):
        thread = threading.Thread(target=refill)
        thread.start()
        while reader(ledger).job("r/a.r1/0") is None:
            time.sleep(0.01)
        if reader(ledger).job("r/b/0").state is State.QUEUED:  # type: ignore[union-attr]
            assert thread.is_alive()
            play_groups(ledger, "b", "a.r1")
        thread.join(30)
        assert not thread.is_alive()
    assert [(len(done.new), len(done.known)) for done in results] == [(2, 0), (0, 2)]


def test_groups_that_were_never_submitted_are_an_error(client: Client) -> None:
    with pytest.raises(ContractError, match="group r/a was never submitted"):
        client.refill([job(0, "a")])


def train_and_forget(ledger: Ledger, name: str) -> None:
    take(ledger, 1, "t")
    ack(ledger, "t", name)
    ledger.redis.delete(ledger.keys.acked(name))  # as if its time had passed


def test_a_forgotten_group_is_taken_for_acknowledged(client: Client, ledger: Ledger) -> None:
    client.forget_after(1.0)
    client.submit([job(0, "a")])
    play_groups(ledger, "a")
    train_and_forget(ledger, "a")
    assert client.refill([job(0, "a")]).new == []


def test_a_forgotten_replacement_is_not_submitted_again(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(_: float) -> None:
        if reader(ledger).group_states(["a.r1"]) == ["open"]:
            play_groups(ledger, "a.r1")

    monkeypatch.setattr(submission, "time", SimpleNamespace(sleep=played))  # while refill waits
    client.forget_after(1.0)
    client.submit([job(0, "a")])
    drop_group(ledger, "a")
    assert client.refill([job(0, "a")]).new == ["r/a.r1/0", "r/a.r1/1"]
    assert client.refill([job(0, "a")]).known == ["r/a.r1/0", "r/a.r1/1"]
    train_and_forget(ledger, "a.r1")
    again = client.refill([job(0, "a")])
    assert (again.new, again.acked) == ([], ["r/a.r1/0", "r/a.r1/1"])
    client.seal()


def test_a_sealed_run_takes_no_replacement(client: Client, ledger: Ledger) -> None:
    client.submit([job(0, "a")])
    drop_group(ledger, "a")
    client.seal()
    with pytest.raises(LedgerError, match="sealed"):
        client.refill([job(0, "a")])


@pytest.mark.parametrize("size", [1, 2])
def test_a_mapping_that_is_used_again_has_what_it_had(size: int) -> None:
    def jobs() -> Iterator[Job]:
        args: dict[str, Any] = {}
        for level in range(3):
            args["level"] = level
            yield Job(env="shop", task=level, size=size, env_args=args)

    groups = list(whole_groups(jobs(), "r"))
    assert [group[0].env_args["level"] for group in groups] == [0, 1, 2]

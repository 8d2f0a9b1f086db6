"""Consumers that wait: woken when their groups are ready, exact batches, batches in the order of
submission, skips, and groups that another version of rollq wrote.
"""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollq import Batch, Client
from rollq.client.consuming import batch_wait
from rollq.errors import LedgerError, MissingGroups, NotHeld, PullTimeout, UnknownSchema
from rollq.ledger.ledger import Ledger
from tests.clock import Clock
from tests.conftest import free_port
from tests.ledger_of import ledger_of
from tests.rollq.groups import (
    deliveries,
    drop_group,
    end_holds,
    finish_groups,
    names,
    play_groups,
    take,
)
from tests.rollq.samples import group, is_over, play
from tests.waiting import until


class Waiting:
    """A consumer that waits for a batch in its own thread."""

    def __init__(self, client: Client, groups: int) -> None:
        self.batches: list[Batch | None] = []
        waiting = f"{ledger_of(client).keys.prefix}waiting:train"
        before = ledger_of(client).redis.hlen(waiting)
        self.thread = threading.Thread(target=self.run, args=(client, groups), daemon=True)
        self.thread.start()
        until(lambda: ledger_of(client).redis.hlen(waiting) > before)

    def run(self, client: Client, groups: int) -> None:
        with client.consumer() as consumer:
            self.batches.append(consumer.next(groups))

    def end(self) -> Batch | None:
        self.thread.join(60)
        return self.batches[0]


@pytest.fixture
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that is not woken waits for an hour."""
    for name in ("LOOK_S", "IDLE_S"):
        monkeypatch.setattr(batch_wait, name, 3600.0)


@pytest.mark.usefixtures("never_looks")
class TestWaking:
    def test_the_last_member_of_the_last_group_wakes(self, client: Client, ledger: Ledger) -> None:
        client.submit([*group("a"), *group("b"), *group("c")])
        waiting = Waiting(client, 2)
        play_groups(ledger, "b", "a")
        assert names(waiting.end()) == ["a", "b"]

    def test_the_end_wakes(self, client: Client) -> None:
        client.submit(group("a", size=1))
        waiting = Waiting(client, 1)
        client.seal()
        client.cancel(group="a")
        assert waiting.end() is None

    def test_a_connection_that_breaks_costs_no_wake_up(
        self, client: Client, ledger: Ledger
    ) -> None:
        client.submit(group("a"))
        waiting = Waiting(client, 1)
        redis = ledger.redis
        until(lambda: any(row["cmd"] == "blpop" for row in redis.client_list()))
        for row in redis.client_list():
            if row["cmd"] == "blpop":
                redis.client_kill_filter(_id=row["id"])
        play_groups(ledger, "a")
        assert names(waiting.end()) == ["a"]


def test_consumers_that_acknowledge_one_step_later_all_come_to_the_end(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_wait, "LOOK_S", 0.05)
    finish_groups(ledger, *"abcdefgh", seal=True)
    got: list[str] = []

    def train() -> None:
        last: Batch | None = None
        for batch in client.batches(2):
            got.extend(names(batch))
            if last:
                last.ack()
            last = batch
        if last:
            last.ack()

    threads = [threading.Thread(target=train, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list("abcdefgh")
    assert is_over(ledger)


def test_a_wait_in_short_pieces_is_one_wait(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, *"abc", seal=True)
    take(ledger, 2, "other/0")
    with client.consumer() as consumer:
        for _ in range(2):
            with pytest.raises(PullTimeout):
                consumer.next(2, 0.01)
        deliveries(ledger).renew_holds(["other/0"])
        assert names(consumer.next(2, 0.01)) == ["c"]


@pytest.mark.usefixtures("never_looks")
def test_a_redis_that_becomes_a_replica_does_not_end_a_wait(client: Client, ledger: Ledger) -> None:
    """It sends those that block away; a failover does this."""
    client.submit(group("a"))
    waiting = Waiting(client, 1)
    redis = ledger.redis
    until(lambda: any(row["cmd"] == "blpop" for row in redis.client_list()))
    redis.replicaof("127.0.0.1", free_port())
    until(lambda: not any(row["cmd"] == "blpop" for row in redis.client_list()))
    redis.replicaof("NO", "ONE")
    play_groups(ledger, "a")
    assert names(waiting.end()) == ["a"]


def test_an_idle_consumer_asks_for_less_than_a_command_a_second(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands inside scripts count. Between two looks it only blocks."""
    look_s, idle_s, block_s = batch_wait.LOOK_S, batch_wait.IDLE_S, batch_wait.BLOCK_S
    monkeypatch.setattr(batch_wait, "BLOCK_S", 0.01)
    client.submit(group("a"))
    redis = ledger.redis

    def commands() -> Counter[str]:
        stats = redis.info("commandstats").items()
        return Counter(
            {
                name: row["calls"]
                for name, row in stats
                if name not in ("cmdstat_info", "cmdstat_ping")
            }
        )

    before = commands()
    ledger.scripts.call("take", 1, "t/0", 60, "train", "", 0, 0, 0, 0, 1)
    look = (commands() - before).total()
    waiting = Waiting(client, 1)
    first = commands()
    until(lambda: (commands() - first)["cmdstat_blpop"] >= 2)  # it has its connection
    before = commands()
    until(lambda: (commands() - before)["cmdstat_blpop"] >= 20)
    assert set(commands() - before) == {"cmdstat_blpop"}
    assert look_s < idle_s
    assert (look + 1) / idle_s + 1 / block_s < 0.6
    play_groups(ledger, "a")
    assert names(waiting.end()) == ["a"]


class TestExact:
    def test_a_sealed_run_says_what_is_missing(self, client: Client, ledger: Ledger) -> None:
        for name in "abcd":
            client.submit(group(name))
        play_groups(ledger, *"abc")
        drop_group(ledger, "d")
        client.seal()
        with client.consumer() as consumer:
            assert names(consumer.next(2, exact=True)) == ["a", "b"]
            with pytest.raises(
                MissingGroups, match=r"1 of 2 groups missing: 1 ready.*1 dropped"
            ) as said:
                consumer.next(2, exact=True)
            assert (said.value.missing, said.value.ready, said.value.dropped) == (1, 1, 1)
            assert names(consumer.next(1, exact=True)) == ["c"]
            consumer.ack(up_to=1)
            assert consumer.next(1, exact=True) is None

    def test_a_dropped_group_is_missed_soon_without_another_wake_up(
        self, client: Client, ledger: Ledger, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, seconds in {"EXHAUSTED_S": 1.0, "LOOK_S": 0.1, "IDLE_S": 3600.0}.items():
            monkeypatch.setattr(batch_wait, name, seconds)
        client.submit([*group("a"), *group("b")])
        play_groups(ledger, "a")
        drop_group(ledger, "b")
        missed = pytest.raises(MissingGroups, match=r"1 of 2 groups missing.*Client\.refill")
        with (
            Client(redis_url, run="r", hold_s=3600.0) as patient,
            patient.consumer() as consumer,
            missed,
        ):
            consumer.next(2, exact=True)

    def test_a_replacement_is_waited_for_however_long_the_batch_took(
        self, client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batch_wait, "time", clock := Clock())
        monkeypatch.setattr(batch_wait, "LOOK_S", 0.01)
        client.submit([*group("a"), *group("b")])
        play_groups(ledger, "a")
        with client.consumer() as consumer, ThreadPoolExecutor() as pool:
            batch = pool.submit(consumer.next, 2, exact=True)
            time.sleep(0.2)
            clock.ahead += 10.0  # b is played for longer than a replacement may take to come
            drop_group(ledger, "b")
            time.sleep(0.2)
            assert not batch.done()
            client.submit(group("c"))
            play_groups(ledger, "c")
            assert names(batch.result(60)) == ["a", "c"]

    def test_a_slow_producer_is_waited_for(self, client: Client, ledger: Ledger) -> None:
        finish_groups(ledger, "a")
        with client.consumer() as consumer, pytest.raises(PullTimeout):
            consumer.next(2, 0.05, exact=True)


def test_in_the_order_of_submission(client: Client, ledger: Ledger) -> None:
    client.submit([*group("a"), *group("b"), *group("c")])
    play_groups(ledger, "b", "c")
    with client.consumer(order="submitted") as consumer:
        with pytest.raises(PullTimeout):
            consumer.next(1, 0.01)
        play_groups(ledger, "a")
        assert names(consumer.next(2)) == ["a", "b"]


class TestSkip:
    def test_a_skipped_group_leaves_the_batch(self, client: Client, ledger: Ledger) -> None:
        finish_groups(ledger, *"abc", seal=True)
        with client.consumer() as consumer:
            batch = consumer.next(3)
            for found in batch.groups:
                if found.id != "b":
                    batch.skip(found.id, "rewards agree")
            batch.skip("a", "rewards agree")  # again
            assert (names(batch), len(batch.tokens), consumer.held) == (["b"], 2, 1)
            batch.ack()
        stats = client.stats()
        assert (stats["skips"], stats["skipped"], stats["delivered"]) == (
            {"rewards agree": 2},
            4,
            2,
        )
        assert is_over(ledger)

    def test_a_group_of_another_batch(self, client: Client, ledger: Ledger) -> None:
        finish_groups(ledger, "a", "b", "c")
        with client.consumer() as consumer:
            batch, _ = consumer.next(1), consumer.next(1)
            for other in ("b", "c"):
                with pytest.raises(NotHeld, match=f"group {other} is not of batch 0"):
                    batch.skip(other, "no")
                with pytest.raises(NotHeld, match=f"job r/{other}/0 is not of batch 0"):
                    batch.reject(f"r/{other}/0", "no")
            batch.ack()
            assert [group.id for group in consumer.next(1).groups] == ["c"]


class TestCancel:
    def test_a_run_is_sealed_and_ends(self, client: Client, ledger: Ledger) -> None:
        client.submit([*group("a"), *group("b"), *group("c", min_viable=1)])
        play_groups(ledger, "a")
        play(ledger, "r/c/1")
        for _ in range(2):
            client.cancel(run=True)
        with pytest.raises(LedgerError, match="sealed"):
            client.submit(group("d"))
        assert [names(batch) for batch in client.batches(2)] == [["a", "c"]]
        stats = client.stats()
        assert (stats["done"], stats["dead"], stats["groups_dropped"], stats["failures"]) == (
            3,
            3,
            1,
            {"cancelled": 3},
        )


class TestOtherVersions:
    def test_a_newer_group_is_left_as_it_is(
        self, client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        finish_groups(ledger, "a", "b")
        with client.consumer() as consumer:
            with monkeypatch.context() as patch:
                patch.setattr("rollq.wire.blob.SCHEMA", 3)
                for _ in range(2):
                    with pytest.raises(UnknownSchema, match="the rollq that wrote it"):
                        consumer.next(2)
            stats = client.stats()
            assert (stats["dead"], stats["groups_held"], stats["groups_acked"]) == (0, 2, 0)
            assert names(consumer.next(2)) == ["a", "b"]  # after the upgrade
            end_holds(ledger, "a", "b")
        assert [found.id for found in take(ledger, 2, "other/0")] == ["a", "b"]

"""The light client against a real Redis; a thread or the test itself plays the worker."""

import threading
from typing import Any

import pytest

from rollq import Batch, Client, Job
from rollq.errors import (
    ContractError,
    JobConflict,
    LedgerError,
    NotHeld,
    PullTimeout,
    SettingsError,
)
from rollq.events import Stop
from rollq.job import Purpose
from rollq.ledger.constants import EVAL, NEW
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import State
from tests.rollq.groups import end_holds, play_groups, take
from tests.rollq.samples import group, job, play
from tests.waiting import until


def submit(client: Client, *names: str, **changes: object) -> None:
    client.submit([member for name in names for member in group(name, **changes)])


class TestSubmit:
    def test_a_lone_sample_stands_for_its_group_and_names_are_filled_in(
        self, client: Client
    ) -> None:
        done = client.submit(
            [Job(env="tau2:retail", task=3, size=2), Job(env="shop", split="test", task=0)]
        )
        assert list(done.new) == [
            "r/tau2-retail.train.3/0",
            "r/tau2-retail.train.3/1",
            "r/shop.test.0/0",
        ]
        assert client.submit(Job(env="shop", split="test", task=0) for _ in range(1)).known == [
            "r/shop.test.0/0"
        ]
        assert client.job("r/tau2-retail.train.3/1").job == Job(
            run="r", group="tau2-retail.train.3", sample=1, env="tau2:retail", task=3, size=2, seq=1
        )

    def test_new_jobs_are_sent_and_confirmed(self, client: Client, ledger: Ledger) -> None:
        new = b"rollq\x06\x16%d" % NEW  # kombu's list of that priority
        client.submit(group())
        assert ledger.redis.llen(new) == 2
        score = ledger.redis.zscore(ledger.keys.queued, "r/g/0")
        assert 590 < score - ledger.scripts.now() <= 600
        client.submit(group())
        assert ledger.redis.llen(new) == 2
        client.submit(
            [*group("h", queue="other"), *group("i", queue="other", purpose=Purpose.EVAL)]
        )
        for priority in (NEW, EVAL):
            assert ledger.redis.llen(b"rollq.other\x06\x16%d" % priority) == 2

    def test_invalid_jobs_are_refused_and_the_groups_before_stay_submitted(
        self, client: Client
    ) -> None:
        submit(client, "g")
        with pytest.raises(ContractError, match=r"jobs\[1\]: job other/g/0: belongs to run other"):
            client.submit([job(group="h", size=1), job(run="other")])
        assert client.job("r/h/0").state is State.QUEUED
        with pytest.raises(JobConflict, match="r/g/0"):
            client.submit(group(seed=1))
        with pytest.raises(ContractError, match="1 of 2"):
            client.submit([job(1, "i")])
        with pytest.raises(ContractError, match="ahead"):
            client.submit([], ahead=0)
        with pytest.raises(
            SettingsError, match=r"forget_after: days must be a positive number .*, not True"
        ):
            client.forget_after(True)
        client.seal()
        with pytest.raises(LedgerError, match="sealed"):
            submit(client, "j")

    def test_it_waits_while_too_many_groups_are_unacknowledged(
        self, client: Client, ledger: Ledger, redis_url: str
    ) -> None:
        submit(client, "a", "b")
        done = threading.Event()

        def produce() -> None:
            with Client(redis_url, run="r") as producer:
                producer.submit([*group("e", purpose=Purpose.EVAL), *group("c")], ahead=2)
            done.set()

        thread = threading.Thread(target=produce)
        thread.start()
        until(lambda: client.stats()["groups_open"] == 3)  # eval groups do not wait for a trainer
        assert not done.wait(0.3)
        assert client.stats()["groups_open"] == 3
        play_groups(ledger, "a")
        for batch in client.batches(1):
            batch.ack()
            break
        assert done.wait(60)
        thread.join()
        assert client.job("r/c/0").state is State.QUEUED


class TestBatches:
    def test_batches_come_until_a_sealed_run_has_no_more(
        self, client: Client, ledger: Ledger
    ) -> None:
        submit(client, "a", "b", "c")
        play(ledger, "r/a/0", 0.0)
        play(ledger, "r/a/1", 1.0)
        play_groups(ledger, "b", "c")
        client.seal()
        batches: list[Batch] = []
        for batch in client.batches(groups=2):
            batches.append(batch)
            batch.ack()
            batch.ack()
        assert [[g.id for g in batch.groups] for batch in batches] == [["a", "b"], ["c"]]
        assert [batch.step for batch in batches] == [0, 1]
        assert [(g.seq, g.size, g.rewards) for g in batches[0].groups] == [
            (1, 2, [0.0, 1.0]),
            (2, 2, [1.0, 1.0]),
        ]
        assert batches[0].trajectories[0].job == job(0, "a", seq=1)
        assert batches[0].trajectories[0].stop is Stop.DONE
        assert client.stats()["delivered"] == 6
        assert list(client.batches(groups=2)) == []

    def test_a_timeout_says_what_is_missing(self, client: Client, ledger: Ledger) -> None:
        submit(client, "a", "b", "c")
        play_groups(ledger, "a", "b")
        take(ledger, 1, "somebody")
        with pytest.raises(PullTimeout, match=r"run r: no 2 groups.*1 ready, 1 open, 1 held"):
            next(client.batches(groups=2, timeout=0.05))

    def test_a_damaged_trajectory_costs_its_job_alone(self, client: Client, ledger: Ledger) -> None:
        submit(client, "a", "b", min_viable=1)
        play_groups(ledger, "a", "b")
        ledger.redis.lset(ledger.keys.journal("r/a/0"), 1, b"junk")
        ledger.redis.delete(ledger.keys.journal("r/b/1"))
        first, second = next(client.batches(2, timeout=5)).groups
        assert [t.job.id for t in first.trajectories] == ["r/a/1"]
        assert list(first.dead) == ["r/a/0"]
        assert [t.job.id for t in second.trajectories] == ["r/b/0"]
        assert {letter.job_id for letter in client.dead()} == {"r/a/0", "r/b/1"}
        assert all(letter.job_id in letter.reason for letter in client.dead())

    def test_a_batch_with_a_lost_group_is_released(self, client: Client, ledger: Ledger) -> None:
        submit(client, "a", "b")
        play_groups(ledger, "a", "b")
        with client.consumer() as consumer:
            batch = consumer.next(2, 5)
            assert batch and consumer.held == 2
            ledger.redis.delete(ledger.keys.group("a"))
            with pytest.raises((NotHeld, LedgerError)):
                batch.ack()
            assert consumer.held == 0  # b is renewed no more, so another consumer gets it
            end_holds(ledger, "b")
            again = consumer.next(1, 5)
            assert again and [g.id for g in again.groups] == ["b"]

    def test_a_batch_that_could_not_be_read_is_not_held(
        self, client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        submit(client, "a")
        play_groups(ledger, "a")

        def away(reader: LedgerReader, *wanted: object) -> None:
            raise ConnectionError("away")

        with client.consumer() as consumer:
            with monkeypatch.context() as patch, pytest.raises(ConnectionError):
                patch.setattr(LedgerReader, "read", away)
                consumer.next(1, 5)
            assert consumer.held == 0
            end_holds(ledger, "a")
            assert consumer.next(1, 5)


class TestJobs:
    def test_an_unknown_one_is_named(self, client: Client) -> None:
        submit(client, "a")
        for look in (client.job, client.trajectory):
            with pytest.raises(LedgerError, match="unknown"):
                look("r/a/7")


NAN = float("nan")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"run": name} for name in (None, "", "a b", "{x}", "a/b")),
        {"hold_s": "x"},
        {"hold_s": NAN},
        {"hold_s": 0},
        {"hold_s": True},
        {"hold_s": 10**400},
    ],
    ids=str,
)
def test_what_makes_no_client(redis_url: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Client(redis_url, **{"run": "r"} | wrong)
    with pytest.raises(SettingsError, match="expected redis"):
        Client("localhost:6379", run="r")


@pytest.mark.parametrize(
    ("method", "arguments", "says"),
    [
        ("submit", {"jobs": [5]}, r"jobs\[0\]: a Job"),
        ("submit", {"jobs": [], "source": 5}, "source 5"),
        ("submit", {"jobs": [], "ahead": True}, "ahead"),
        ("refill", {"jobs": [], "ahead": 0}, "ahead"),
        ("refill", {"jobs": [], "times": -1}, "times"),
        ("pin_tokenizer", {"tokenizer_hash": "t", "template_hash": ""}, "hashes"),
        ("pin_tokenizer", {"tokenizer_hash": 5, "template_hash": "c"}, "hashes"),
        ("set_engines", {"name": "big", "urls": "http://h:1"}, "in a list, not in a text"),
        ("set_engines", {"name": "big", "urls": ["http://h:1", "h"]}, "engines big: not an addr"),
        ("set_engines", {"name": "big", "urls": ["redis:other"]}, "has no lists in it"),
        ("set_engines", {"name": "a b", "urls": ["http://h:1"]}, "the name of a list"),
        ("forget_after", {"days": NAN}, "days"),
        ("forget_after", {"days": 1e300}, "days"),
        ("batches", {"groups": 1, "timeout": NAN}, "timeout"),
        ("batches", {"groups": True}, "groups"),
        ("consumer", {"purpose": []}, "purpose"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(
    client: Client, ledger: Ledger, method: str, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises((ContractError, SettingsError), match=says):
        getattr(client, method)(**arguments)
    assert ledger.redis.keys("*") == []


@pytest.mark.parametrize(
    "wrong", [{"groups": 0}, {"groups": "x"}, {"groups": 1.5}, {"timeout": NAN}, {"timeout": "x"}]
)
def test_a_consumer_does_not_wait_for_what_is_no_number(
    client: Client, wrong: dict[str, Any]
) -> None:
    """A timeout of NaN would neither pass nor pause."""
    with client.consumer() as consumer, pytest.raises(ContractError, match=next(iter(wrong))):
        consumer.next(**{"groups": 1} | wrong)


def test_a_bound_that_comes_too_late_is_said(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    submit(client, "a")
    for _ in range(2):
        client.limit_staleness(1, 0)
    [message] = caplog.messages
    assert "call it before the first submission" in message


def test_the_counts_of_a_run_that_does_not_exist_are_zeros_and_said_once(
    client: Client, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    submit(client, "a")
    with Client(redis_url, run="rr") as typo:
        stats = [typo.stats() for _ in range(2)]
    assert [(each["known"], each["submitted"]) for each in stats] == [(False, 0)] * 2
    assert client.stats()["known"]
    assert caplog.messages == ["run rr does not exist yet; did you mean 'r'? runs there: r"]

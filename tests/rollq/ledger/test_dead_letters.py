"""Dead letters: what a requeued job and its group become, and what is deleted."""

from typing import Any

import pytest
import redis

from rollq.client.client import Client
from rollq.errors import ContractError, FailureClass, Fenced, LedgerError, SettingsError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import ACTIVE, RUNS
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader, runs
from rollq.ledger.replies import State
from rollq.ledger.scripts import Scripts
from rollq.ledger.workers.time_spent import report_time
from tests.rollq.groups import ack, play_groups, take
from tests.rollq.samples import claim, events, group, journal, play, reader, reap

TRACE = "it broke\nTraceback (most recent call last):\n  File x.py\nValueError: no\x1b[31m such"


@pytest.fixture
def letters(ledger: Ledger) -> DeadLetters:
    return DeadLetters(ledger.redis, "r")


def kill(
    ledger: Ledger, job_id: str, failure: FailureClass = FailureClass.ENV, turns: int = 1
) -> None:
    """Through its whole budget, with a journal in the last attempt."""
    state = reader(ledger).job(job_id)
    attempt = state.attempt
    while reader(ledger).job(job_id).state is not State.DEAD:  # type: ignore[union-attr]
        attempt += 1
        lease = claim(ledger, job_id, f"kill-{job_id}-{attempt}").lease
        if not ledger.journal(job_id):
            journal(ledger, job_id, lease, events()[: 1 + 2 * turns])
        ledger.fail(job_id, lease, failure, TRACE)
        ledger.redis.hset(ledger.keys.job(job_id), "not_before", 0)


def balanced(ledger: Ledger) -> None:
    """The accounts of a run in which nothing is queued or played."""
    stats = reader(ledger).stats()
    assert stats["submitted"] == stats["done"] + stats["dead"]
    assert stats["delivered"] + stats["dropped"] == stats["done"]


class TestRequeue:
    def test_a_call_whose_reply_was_lost_can_be_made_again(
        self, client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger.submit(group())
        kill(ledger, "r/g/0")
        call, lost = Scripts.call, ["a reply"]

        def lose_a_reply(self: Scripts, name: str, *args: Any) -> Any:
            reply = call(self, name, *args)
            if name == "requeue" and lost:
                raise redis.ConnectionError(f"lost {lost.pop()}")
            return reply

        monkeypatch.setattr(Scripts, "call", lose_a_reply)
        client.requeue(["r/g/0"])
        assert not lost and reader(ledger).stats()["requeued"] == 1

    def test_a_fresh_start_in_an_open_group(self, ledger: Ledger, letters: DeadLetters) -> None:
        ledger.submit(group())
        kill(ledger, "r/g/0")
        last = reader(ledger).trajectory("r/g/0").events[:-1]
        letters.requeue("r/g/0")
        state = reader(ledger).job("r/g/0")
        assert (state.state, state.failures, state.attempt) == (State.QUEUED, {}, 2)
        assert (
            reader(ledger).dead(),
            reader(ledger).stats()["dead"],
            reader(ledger).stats()["requeued"],
        ) == ([], 0, 1)
        assert reap(ledger) == ["r/g/0"]  # published at once
        again = claim(ledger, "r/g/0", "again")
        assert (again.attempt, again.set_aside, again.journal) == (3, True, 0)
        assert reader(ledger).trajectory("r/g/0", 2).events[: len(last)] == last

    def test_what_the_run_does_not_have(self, ledger: Ledger, letters: DeadLetters) -> None:
        ledger.submit(group())
        play_groups(ledger, "g")
        take(ledger, 1, "t")
        ack(ledger, "t", "g")
        for act in (letters.requeue, letters.discard, letters.cancel):
            for none in ("r/g/7", "r/g/10000", "r/x/0"):
                with pytest.raises(LedgerError, match=f"{none} is unknown"):
                    act(none)
            with pytest.raises(ContractError):
                act("other/x/0")

    def test_a_member_that_an_acknowledged_group_went_without(
        self, ledger: Ledger, letters: DeadLetters
    ) -> None:
        ledger.submit(group(min_viable=1))
        kill(ledger, "r/g/0")
        play(ledger, "r/g/1")
        take(ledger, 1, "t")
        ack(ledger, "t", "g")
        letters.discard("r/g/0")
        with pytest.raises(LedgerError, match="r/g/0 cannot be requeued: its body is gone"):
            letters.requeue("r/g/0")
        with pytest.raises(LedgerError, match="r/g/0 cannot be cancelled: it is dead"):
            letters.cancel("r/g/0")

    def test_a_list_of_runs_that_cannot_be_written(
        self, ledger: Ledger, letters: DeadLetters
    ) -> None:
        ledger.submit(group())
        kill(ledger, "r/g/0")
        ledger.redis.set(ACTIVE, "x")
        with pytest.raises(LedgerError, match=ACTIVE):
            letters.requeue("r/g/0")

    def test_no_more_letters_than_are_wanted(self, ledger: Ledger) -> None:
        ledger.submit(group())
        kill(ledger, "r/g/0")
        kill(ledger, "r/g/1")
        assert [len(reader(ledger).dead(limit)) for limit in (0, 1, 2, None)] == [0, 1, 2, 2]


class TestDiscard:
    def test_what_it_held_is_deleted_and_it_stays_counted(
        self, ledger: Ledger, letters: DeadLetters
    ) -> None:
        ledger.submit(group(min_viable=1))
        kill(ledger, "r/g/0")
        # The last one, and one that was set aside.
        assert len(list(ledger.redis.scan_iter("*journal:r/g/0*"))) == 2
        letters.discard("r/g/0")
        letters.discard("r/g/0")
        assert not list(ledger.redis.scan_iter("*journal:r/g/0*"))
        assert not ledger.redis.hexists(ledger.keys.job("r/g/0"), "body")
        stats = reader(ledger).stats()
        assert (stats["dead"], stats["discarded"], reader(ledger).dead()) == (1, 1, [])
        with pytest.raises(LedgerError, match="body is gone"):
            letters.requeue("r/g/0")
        with pytest.raises(LedgerError, match="dropped"):
            reader(ledger).trajectory("r/g/0")
        play(ledger, "r/g/1")
        (taken,) = take(ledger, 1, "t")
        assert (taken.members, taken.dead) == (["r/g/1"], ["r/g/0"])
        ack(ledger, "t", taken.id)
        balanced(ledger)

    def test_the_last_dead_member_of_a_dropped_group_takes_all_along(
        self, ledger: Ledger, letters: DeadLetters
    ) -> None:
        ledger.submit(group(size=3))
        play(ledger, "r/g/0")
        kill(ledger, "r/g/1")
        kill(ledger, "r/g/2")
        letters.discard("r/g/1")
        assert reader(ledger).trajectory("r/g/0").reward == 1.0
        letters.discard("r/g/2")
        assert not list(ledger.redis.scan_iter("*journal*"))
        balanced(ledger)

    def test_a_group_that_is_dropped_later_takes_the_rest_along(
        self, ledger: Ledger, letters: DeadLetters
    ) -> None:
        ledger.submit(group(size=3))
        play(ledger, "r/g/0")
        kill(ledger, "r/g/1")
        letters.discard("r/g/1")
        assert reader(ledger).trajectory("r/g/0").reward == 1.0
        play(ledger, "r/g/2")
        assert reader(ledger).stats()["groups_dropped"] == 1
        assert not list(ledger.redis.scan_iter("*journal*"))
        assert not [
            sample
            for sample in range(3)
            if ledger.redis.hexists(ledger.keys.job(f"r/g/{sample}"), "body")
        ]
        balanced(ledger)


class TestBudgets:
    def test_they_are_fixed_by_the_first_submission(self, ledger: Ledger, redis_url: str) -> None:
        with Client(redis_url, run="r", budgets={FailureClass.ENGINE: 8}) as client:
            client.submit(group())
            client.submit(group())
        ledger.submit(group("h"))  # without budgets, it accepts those of the run
        with pytest.raises(SettingsError, match="budget of 8 failures of class engine, not 5"):
            ledger.pin_budgets({FailureClass.ENGINE: 5})
        with pytest.raises(SettingsError, match="budget of 2 failures of class env, not 3"):
            ledger.pin_budgets({FailureClass.ENV: 3})
        other = Ledger(ledger.redis, "other")
        other.submit(group(run="other"))
        with pytest.raises(SettingsError, match="class env"):
            other.pin_budgets({FailureClass.ENV: 3})
        other.pin_budgets({FailureClass.ENV: 2})  # what it has

    def test_a_class_may_be_its_name(self, ledger: Ledger) -> None:
        ledger.pin_budgets({"engine": 8})  # type: ignore[dict-item]
        ledger.pin_budgets({FailureClass.ENGINE: 8})
        with pytest.raises(SettingsError, match="budget of 8 failures of class engine, not 5"):
            ledger.pin_budgets({"engine": 5})  # type: ignore[dict-item]

    def test_impossible_budgets(self, ledger: Ledger) -> None:
        for budgets in (
            {FailureClass.CANCELLED: 2},
            {FailureClass.ENV: 0},
            {FailureClass.ENV: True},
        ):
            with pytest.raises(ContractError, match="run r"):
                ledger.pin_budgets(budgets)


def test_deleting_a_run_leaves_the_others(ledger: Ledger, letters: DeadLetters) -> None:
    names = ["r", "r2", "R", "r-r"]
    for name in names:
        other = Ledger(ledger.redis, name)
        other.submit(group(run=name))
        play(other, f"{name}/g/0")
    ledger.redis.set("theirs", 1)
    assert letters.forget_run() > 5
    assert letters.forget_run() == 0
    assert sorted(runs(ledger.redis)) == sorted(names[1:])
    assert not list(ledger.redis.scan_iter(r"rollq:{r}*"))
    assert LedgerReader(ledger.redis, "r2").stats()["done"] == 1
    assert ledger.redis.exists("theirs", RUNS) == 2
    ledger.submit(group(seed=5))  # a new run of that name
    assert reader(ledger).stats()["submitted"] == 2


def test_a_run_that_was_deleted_stays_deleted(ledger: Ledger, letters: DeadLetters) -> None:
    ledger.submit(group())
    lease = claim(ledger, "r/g/0").lease
    letters.forget_run()
    with pytest.raises(Fenced):
        ledger.append("r/g/0", lease, 0, [b"header"])
    with pytest.raises(Fenced):
        ledger.fail("r/g/0", lease, FailureClass.ENV, "broke")
    report_time(ledger.scripts, "w", {"engine": 1.0})
    assert take(ledger, 1, "t") == []
    ledger.reap()
    assert not list(ledger.redis.scan_iter(r"rollq:*"))

"""Dynamic sampling and rewards of the trainer: which groups a batch keeps, and what happens when
that fails.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollq import Batch, Client, Group, Trajectory
from rollq.errors import FunctionError, MissingGroups, PullTimeout, SettingsError
from rollq.ledger.ledger import Ledger
from tests.ledger_of import ledger_of
from tests.rollq.groups import end_holds
from tests.rollq.samples import group, is_over, play


def finish(client: Client, learnable: str, **changes: object) -> None:
    """Groups of two, a, b, c, ...: those of a capital letter have equal rewards."""
    for letter in learnable:
        name = letter.lower()
        ledger_of(client).submit(group(name, **changes))
        play(ledger_of(client), f"r/{name}/0", 1.0)
        play(ledger_of(client), f"r/{name}/1", 1.0 if letter.isupper() else 0.0)


def names(batch: Batch | None) -> str:
    assert batch is not None
    return "".join(found.id for found in batch.groups)


def test_a_batch_is_filled_up_with_the_groups_that_it_keeps(client: Client) -> None:
    finish(client, "aBcDEfg")
    with client.consumer(where="unequal_rewards") as consumer:
        batch = consumer.next(3)
        assert (names(batch), batch.step, consumer.held) == ("acf", 0, 3)
        batch.ack()
        assert names(consumer.next(1)) == "g"
    stats = client.stats()
    assert (stats["skips"], stats["groups_acked"], stats["groups_skipped"]) == (
        {"unequal_rewards": 3},
        3,
        3,
    )


def test_the_last_batch_of_a_sealed_run_may_be_short(client: Client) -> None:
    finish(client, "aBCdE")
    client.seal()
    assert [names(batch) for batch in client.batches(2, where="unequal_rewards")] == ["ad"]


def test_a_run_without_a_group_to_keep_ends_without_a_batch(client: Client, ledger: Ledger) -> None:
    finish(client, "ABC")
    client.seal()
    assert list(client.batches(2, where="unequal_rewards")) == []
    assert is_over(ledger)
    assert client.stats()["skips"] == {"unequal_rewards": 3}


def test_a_filter_sees_the_rewards_of_the_trainer(client: Client) -> None:
    finish(client, "aB")
    by_sample = client.consumer(reward=lambda t: float(t.job.sample), where="unequal_rewards")
    batch = by_sample.next(2)
    assert (names(batch), batch.rewards, batch.advantages) == (
        "ab",
        [0.0, 1.0] * 2,
        [-1.0, 1.0] * 2,
    )
    assert batch.arrays().rewards.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert [t.reward for t in batch.trajectories] == [1.0, 0.0, 1.0, 1.0]


def test_what_a_wait_leaves_incomplete_is_gone_on_with(client: Client) -> None:
    finish(client, "aBc")
    judged: list[str] = []

    def learnable(found: Group) -> bool:
        judged.append(found.id)
        return any(found.advantages)

    with client.consumer(where=learnable) as consumer:
        for _ in range(2):
            with pytest.raises(PullTimeout, match="no 3 groups were ready"):
                consumer.next(3, timeout=0.05)
        assert (consumer.held, judged) == (2, ["a", "b", "c"])
        finish(client, "d")
        assert names(consumer.next(3, timeout=5)) == "acd"
    assert judged == ["a", "b", "c", "d"]


def test_an_exact_batch_says_how_many_groups_it_lacks(client: Client) -> None:
    finish(client, "aBc")
    client.seal()
    with client.consumer(where="unequal_rewards") as consumer:
        with pytest.raises(MissingGroups, match="1 of 3 groups missing: 2 ready") as missing:
            consumer.next(3, exact=True)
        assert (missing.value.missing, missing.value.ready) == (1, 2)
        assert names(consumer.next(2, exact=True)) == "ac"


@pytest.mark.parametrize("what", ["where", "reward"])
def test_a_function_that_fails_loses_nothing(client: Client, what: str) -> None:
    finish(client, "aBc")
    broken = True

    def function(of: Group | Trajectory) -> float:
        name = of.id if isinstance(of, Group) else of.job.group
        if broken and name == "c":
            raise ValueError("not yet")
        return 1

    named = {
        "where": "group r/c: the filter .*function",
        "reward": "job r/c/0: the reward function .*function",
    }
    with client.consumer(**{what: function}) as consumer:  # type: ignore[arg-type]
        with pytest.raises(FunctionError, match=rf"{named[what]}: ValueError: not yet"):
            consumer.next(3)
        assert (consumer.held, client.stats()["groups_held"]) == (3, 3)
        broken = False
        batch = consumer.next(3)
        assert (names(batch), batch.step) == ("abc", 0)
        batch.ack()
    assert client.stats()["groups_acked"] == 3


@pytest.mark.parametrize("what", ["where", "reward"])
def test_a_loop_whose_function_fails_keeps_no_group_from_the_next_one(
    client: Client, what: str
) -> None:
    finish(client, "abc")

    def function(value: object) -> float:
        raise ValueError("no")

    with pytest.raises(FunctionError):
        next(client.batches(3, **{what: function}))  # type: ignore[arg-type]
    assert names(next(client.batches(3, timeout=1))) == "abc"


def test_a_function_that_is_not_there_is_refused_before_anything_is_taken(client: Client) -> None:
    for functions in ({"where": "equal"}, {"where": "not_there:where"}, {"reward": "json:nothing"}):
        with pytest.raises(SettingsError):
            client.consumer(**functions)  # type: ignore[arg-type]


def test_an_unreadable_trajectory_is_rejected_and_the_batch_is_made_up_again(
    client: Client, ledger: Ledger
) -> None:
    finish(client, "aBcd")
    ledger.redis.lset(ledger.keys.journal("r/c/0"), 1, b"torn")
    with client.consumer(where="unequal_rewards") as consumer:
        assert names(consumer.next(2)) == "ad"
    assert client.stats()["failures"] == {"job": 1}


def test_a_named_consumer_keeps_one_step_and_its_successor_gets_the_same_batch(
    client: Client,
) -> None:
    finish(client, "aBcDef")
    first = client.consumer(name="trainer", where="unequal_rewards")
    assert [(names(batch), batch.step) for batch in (first.next(2), first.next(1))] == [
        ("ac", 0),
        ("e", 1),
    ]
    second = client.consumer(name="trainer", where="unequal_rewards")
    batches = [second.next(9), second.next(9), second.next(1)]
    assert [(names(batch), batch.step) for batch in batches] == [("ac", 0), ("e", 1), ("f", 2)]
    assert client.stats()["skips"] == {"unequal_rewards": 2}


def test_what_the_trainer_itself_skipped_is_not_filled_up_for_its_successor(client: Client) -> None:
    finish(client, "aBcde")
    first = client.consumer(name="trainer", where="unequal_rewards")
    batch = first.next(3)
    batch.skip("c", "too long")
    second = client.consumer(name="trainer", where="unequal_rewards")
    assert names(second.next(3)) == "ad"


def stop_at(group: str) -> Callable[[Group], bool]:
    """A filter in a process that dies when it comes to that group."""

    def keep(found: Group) -> bool:
        if found.id == group:
            raise KeyboardInterrupt
        return any(found.advantages)

    return keep


@pytest.mark.parametrize(("learnable", "died_at"), [("aBcd", "c"), ("ABcd", "c"), ("aBcd", "b")])
def test_a_successor_fills_up_what_the_process_before_left_incomplete(
    client: Client, learnable: str, died_at: str
) -> None:
    finish(client, learnable)
    first = client.consumer(name="trainer", where=stop_at(died_at))
    with pytest.raises(KeyboardInterrupt):
        first.next(2)
    second = client.consumer(name="trainer", where="unequal_rewards")
    batch = second.next(2)
    assert (names(batch), batch.step) == ("ac" if "a" in learnable else "cd", 0)
    finish(client, "ef")
    later = second.next(1)
    assert (later.step, names(later)) == (1, "d" if "a" in learnable else "e")


def test_a_successor_fills_up_a_batch_behind_one_that_a_trainer_has_seen(client: Client) -> None:
    finish(client, "abC")
    first = client.consumer(name="trainer", where="unequal_rewards")
    first.next(1)
    with pytest.raises(PullTimeout):
        first.next(2, timeout=0.05)
    second = client.consumer(name="trainer", where="unequal_rewards")
    assert names(second.next(1)) == "a"
    with pytest.raises(PullTimeout):
        second.next(2, timeout=0.05)
    finish(client, "d")
    batch = second.next(2)
    assert (names(batch), batch.step) == ("bd", 1)


def test_at_the_end_no_batch_is_left_of_which_the_filter_kept_nothing(client: Client) -> None:
    finish(client, "aB")
    client.seal()
    first = client.consumer(name="trainer", where=stop_at("b"))
    first.next(1)
    with pytest.raises(KeyboardInterrupt):
        first.next(1)
    second = client.consumer(name="trainer", where="unequal_rewards")
    assert (names(second.next(1)), second.next(1)) == ("a", None)
    second.ack(up_to=1)
    assert client.stats()["groups_acked"] == 1


def test_a_consumer_that_lost_the_hold_of_an_incomplete_batch_makes_up_another(
    client: Client, ledger: Ledger
) -> None:
    finish(client, "aBc")
    with client.consumer(where="unequal_rewards") as consumer, client.consumer() as other:
        with pytest.raises(PullTimeout):
            consumer.next(3, timeout=0.05)
        end_holds(ledger, "a", "c")
        assert names(other.next(2)) == "ac"
        finish(client, "de")
        assert names(consumer.next(2)) == "de"

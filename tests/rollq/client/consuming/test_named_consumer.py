"""A named consumer and its successors: the next one goes on with the same batches, after the last
step that its checkpoint holds.
"""

import enum
import threading

import pytest

from rollq import Client
from rollq.errors import ContractError, LedgerError, NotHeld
from rollq.job import Purpose
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import end_holds, finish_groups, names, take
from tests.rollq.samples import group, is_over
from tests.waiting import until


def test_a_successor_gets_the_same_batches_at_once_and_then_new_ones(
    client: Client, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcdefg")
    first = client.consumer(name="trainer")
    assert [names(first.next(2)), names(first.next(1)), names(first.next(2))] == [
        ["a", "b"],
        ["c"],
        ["d", "e"],
    ]
    first.ack(up_to=0)
    second = client.consumer(name="trainer")
    batches = [second.next(9), second.next(9), second.next(2)]
    assert [names(batch) for batch in batches] == [["c"], ["d", "e"], ["f", "g"]]
    assert [batch.step for batch in batches] == [1, 2, 3]
    assert [found.redelivered for batch in batches for found in batch.groups] == [
        True,
        True,
        True,
        False,
        False,
    ]
    second.ack(up_to=3)
    stats = client.stats()
    assert (stats["groups_acked"], stats["redelivered"]) == (7, 3)


def test_a_trainer_that_restarts_from_a_checkpoint_gets_what_it_trained_on_after_it(
    client: Client, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcdef", seal=True)
    first = client.consumer(name="trainer")
    for _ in range(3):
        first.next(2)
    again = list(client.batches(2, name="trainer", step=0))
    assert [(batch.step, names(batch)) for batch in again] == [(1, ["c", "d"]), (2, ["e", "f"])]
    assert client.stats()["groups_acked"] == 2
    assert all(found.redelivered for batch in again for found in batch.groups)
    assert list(client.batches(2, name="trainer", step=2)) == []
    assert is_over(ledger)


def test_the_process_before_is_fenced(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, *"abc")
    first = client.consumer(name="trainer")
    batch = first.next(1)
    second = client.consumer(name="trainer")
    for act in (
        lambda: first.ack(0),
        batch.ack,
        lambda: batch.skip("a", "no"),
        lambda: first.next(1),
    ):
        with pytest.raises(NotHeld, match="another process has opened consumer 'trainer'"):
            act()
    assert names(second.next(1)) == ["a"]
    assert client.stats()["groups_acked"] == 0


def test_a_predecessor_that_waits_finds_out_at_once(client: Client, ledger: Ledger) -> None:
    client.submit(group("a"))
    said: list[Exception] = []

    def wait() -> None:
        try:
            client.consumer(name="trainer").next(1)
        except NotHeld as e:
            said.append(e)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: ledger.redis.exists(f"{ledger.keys.prefix}waiting:train"))
    client.consumer(name="trainer")
    thread.join(60)
    assert len(said) == 1


def test_a_checkpoint_older_than_what_was_acknowledged_is_an_error(
    client: Client, ledger: Ledger
) -> None:
    finish_groups(ledger, *"ab")
    first = client.consumer(name="trainer")
    first.next(1)
    first.next(1).ack()
    with pytest.raises(
        LedgerError,
        match="acknowledged up to step 1, so the batches after step 0 cannot come again",
    ):
        client.consumer(name="trainer", step=0)
    assert names(client.consumer(name="trainer").next(1)) == ["a"]
    client.consumer(name="trainer", step=1)
    assert client.stats()["groups_acked"] == 2


def test_a_checkpoint_newer_than_the_ledger_counts_on(
    client: Client, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis has lost its last writes, or the run is a new one."""
    finish_groups(ledger, *"abc")
    assert client.consumer(name="new", step=41).next(1).step == 42
    assert not caplog.records
    client.consumer(name="trainer").next(1)
    assert client.consumer(name="trainer", step=7).next(1).step == 8
    assert "lost its last writes" in caplog.text


def test_after_a_rollback_the_latest_process_still_owns_the_name(
    client: Client, ledger: Ledger
) -> None:
    finish_groups(ledger, *"ab")
    first, redis = client.consumer(name="trainer"), ledger.redis
    record = f"{ledger.keys.prefix}consumer:train:trainer"
    before = redis.dump(record)
    second = client.consumer(name="trainer")
    redis.restore(record, 0, before, replace=True)
    assert names(second.next(1)) == ["a"]
    with pytest.raises(NotHeld):
        first.next(1)
    redis.delete(record)
    assert names(second.next(1)) == ["b"]


def test_holds_that_ran_out_go_to_others_only_when_they_ask(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, *"abcd")
    first = client.consumer(name="trainer")
    first.next(1)
    first.next(1)
    first.next(1)
    end_holds(ledger, "a", "b", "c")
    second = client.consumer(name="trainer")
    assert names(second.next(1)) == ["a"]  # nobody asked meanwhile
    end_holds(ledger, "a", "b")
    assert [found.id for found in take(ledger, 2, "other/0")] == ["a", "b"]
    assert [names(second.next(1)), names(second.next(1))] == [["c"], ["d"]]


def test_names_are_of_one_purpose(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "e", purpose=Purpose.EVAL)
    finish_groups(ledger, "t")
    evaluation, training = client.consumer(Purpose.EVAL, name="n"), client.consumer(name="n")
    assert (names(training.next(1)), names(evaluation.next(1))) == (["t"], ["e"])
    evaluation.ack(up_to=0)
    training.ack(up_to=0)
    assert client.stats()["groups_acked"] == 2


@pytest.mark.parametrize(
    "how",
    [
        {"step": 1},
        {"name": "n", "step": -1},
        {"name": "n", "step": 1 << 60},
        {"name": "a/b"},
        {"name": 5},
        {"order": []},
    ],
)
def test_what_makes_no_consumer(client: Client, how: dict[str, object]) -> None:
    with pytest.raises(ContractError):
        client.consumer(**how)


def test_a_name_of_an_enum_is_its_value(client: Client, ledger: Ledger) -> None:
    """The str() of such a member is another text: its batches would not be found again."""

    class Names(str, enum.Enum):  # noqa: UP042
        TRAINER = "trainer"

    finish_groups(ledger, "a", "b")
    batch = client.consumer(name=Names.TRAINER).next(1, 60)
    assert batch is not None
    successor = client.consumer(name="trainer").next(1, 60)
    assert successor is not None
    assert (successor.step, names(successor)) == (batch.step, names(batch))

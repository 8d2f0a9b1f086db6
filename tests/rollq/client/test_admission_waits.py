"""Who waits for whom in a run with a bound on staleness, from a real Redis in the state of each
wait.
"""

import pytest

from rollq.client.client import Client
from rollq.client.waits import explain
from rollq.errors import PullTimeout
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import finish_groups
from tests.rollq.samples import group, reader


def bounded(client: Client, ledger: Ledger, names: str, *, staleness: int = 0) -> None:
    """A run that admits two groups a step, and these groups, played."""
    client.limit_staleness(2, staleness)
    finish_groups(ledger, *names)


def test_a_trainer_that_never_publishes(client: Client, ledger: Ledger) -> None:
    bounded(client, ledger, "ab")
    with client.consumer() as consumer:
        assert consumer.next(2)
        with pytest.raises(PullTimeout) as late:
            consumer.next(2, timeout=0.1)
    said = (
        "a consumer waits for 2 groups, and admission lets no more in (0 open, 0 ready, "
        "2 held, 0 trained; step 0,"
        " batches of 2, max_staleness 0): nothing was ever published. After each batch, "
        "once the engines serve its"
        " weights, call `client.publish(1)` or `rollq engines publish`"
    )
    assert str(late.value).endswith(said)


def test_a_trainer_that_publishes_too_rarely(client: Client, ledger: Ledger) -> None:
    bounded(client, ledger, "abcd", staleness=1)
    client.publish(0)
    with client.consumer() as consumer:
        for _ in range(2):
            batch = consumer.next(2)
            assert batch
            batch.ack()
    said = explain(reader(ledger), wanted=2)
    assert (
        "the trainer was given 4 groups, and each step has 2. Take one batch a step, and "
        "publish after each" in said
    )


def test_a_trainer_that_forgets_one_step(client: Client, ledger: Ledger) -> None:
    bounded(client, ledger, "ab")
    client.publish(0)
    next(client.batches(2)).ack()
    assert ledger.submit(group("c")).full
    for waits_of in ({"wanted": 2}, {"ahead": 256}, {}):
        said = explain(reader(ledger), **waits_of)
        assert (
            "step 1 is not published yet. Once the engines serve its weights, call "
            "`client.publish(1)`" in said
        )


def test_a_trainer_that_reads_ahead_while_it_trains(client: Client, ledger: Ledger) -> None:
    bounded(client, ledger, "abcd", staleness=1)
    client.publish(0)
    with client.consumer() as consumer:
        for _ in range(4):
            assert consumer.next(1)
        with pytest.raises(PullTimeout, match="admission lets no more in"):
            consumer.next(1, timeout=0.1)
        assert ledger.submit(group("e")).full
        assert explain(reader(ledger), ahead=256) == explain(reader(ledger)) == ""


def test_a_bounded_producer_waits_for_a_trainer(client: Client, ledger: Ledger) -> None:
    bounded(client, ledger, "ab")
    assert explain(reader(ledger)) == ""  # nothing waits
    assert ledger.submit(group("c")).full
    said = explain(reader(ledger), ahead=256)
    assert "a producer waits, because admission lets no more in (0 open, 2 ready" in said
    assert (
        "no consumer takes the groups: start a trainer or `rollq pull --run r --groups 2`" in said
    )
    with client.consumer() as consumer:
        assert consumer.next(2)
        assert explain(reader(ledger), ahead=256) == ""  # it trains

"""Groups whose tokens are older than the bound, or of unknown weights, reach no trainer while
admission is on.
"""

import pytest

from rollq.client.client import Client
from rollq.client.consuming import batch_wait
from rollq.client.producing.submission import replacements
from rollq.errors import MissingGroups, PullTimeout
from rollq.ledger.ledger import Ledger
from rollq.servers.retry import RetryLoop
from tests.ledger_of import ledger_of
from tests.rollq.groups import names, play_groups
from tests.rollq.samples import group, reader


def finish(client: Client, name: str, version: str) -> None:
    client.submit(group(name))
    play_groups(ledger_of(client), name, version=version)


@pytest.mark.parametrize("bound", [0, 1])
def test_old_and_unknown_groups_are_skipped_and_make_room(client: Client, bound: int) -> None:
    client.limit_staleness(groups_per_batch=3, max_staleness=bound)
    client.publish(1 + bound)
    for name, version in (("a", "0"), ("b", "1"), ("c", "default")):
        finish(client, name, version)
    with client.consumer() as consumer:
        with pytest.raises(PullTimeout):
            consumer.next(3, timeout=0.05)
        for name in "de":  # in their places
            finish(client, name, "1")
        batch = consumer.next(3, timeout=5)
        assert batch and [found.id for found in batch.groups] == ["b", "d", "e"]
        assert (batch.staleness.max, batch.staleness.unknown_tokens) == (bound, 0)
    assert client.stats()["skips"] == {"stale": 2}


@pytest.mark.parametrize("sealed", [False, True])
def test_an_exact_batch_that_lacks_stale_groups_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    monkeypatch.setattr(batch_wait, "EXHAUSTED_S", 0.0)
    client.limit_staleness(groups_per_batch=2, max_staleness=0)
    client.publish(1)
    finish(client, "a", "0")
    finish(client, "b", "1")
    if sealed:
        client.seal()
    with client.consumer() as consumer, pytest.raises(MissingGroups):
        consumer.next(2, timeout=5, exact=True)


def test_a_stale_group_is_refilled_as_a_dropped_one(client: Client, ledger: Ledger) -> None:
    client.limit_staleness(groups_per_batch=1, max_staleness=0)
    client.publish(1)
    finish(client, "a", "0")
    with client.consumer() as consumer, pytest.raises(PullTimeout):
        consumer.next(1, timeout=0.05)
    assert reader(ledger).group_states(["a", "b"]) == ["dropped", ""]
    refilled = client.refill(group("a"), times=0)
    assert refilled.new == []
    # A replacement is entered before `refill` waits for it.
    found = next(replacements(reader(ledger), [group("a")], 1, retry=RetryLoop()))
    assert [each.id for each in found] == ["r/a.r1/0", "r/a.r1/1"]


@pytest.mark.parametrize("published", [False, True])
def test_without_a_bound_or_a_publication_nothing_is_skipped(
    client: Client, published: bool
) -> None:
    if published:
        client.publish(5)
    else:
        client.limit_staleness(groups_per_batch=1, max_staleness=0)
    finish(client, "a", "default")
    assert names(next(client.batches(1, timeout=5))) == ["a"] and client.stats()["skips"] == {}


def test_what_a_trainer_had_comes_again_as_it_was(client: Client) -> None:
    client.limit_staleness(groups_per_batch=1, max_staleness=0)
    client.publish(0)
    finish(client, "a", "0")
    with client.consumer(name="t") as consumer:
        assert consumer.next(1)
    client.publish(1)
    with client.consumer(name="t") as consumer:
        batch = consumer.next(1)
    assert batch and (batch.groups[0].id, batch.staleness.max) == ("a", 1)

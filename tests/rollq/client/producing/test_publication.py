"""A trainer publishes its policies and bounds its staleness, also when Redis loses its
last writes.
"""

import logging

import pytest

from rollq.client.client import Client
from rollq.errors import ContractError, SettingsError
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Published
from rollq.training.staleness import Staleness
from tests.rollq.groups import play_groups
from tests.rollq.samples import job, reader


def lose_the_last_publication(ledger: Ledger) -> None:
    """What a power cut does to what was written in the last second."""
    ledger.redis.hset(
        ledger.keys.meta,
        mapping={"step": 0, "version": "0", "published": 1, "publication": "older"},
    )
    ledger.redis.delete(f"{ledger.keys.prefix}versions")


def test_a_batch_knows_its_policy_and_the_steps_of_its_tokens(
    client: Client, ledger: Ledger
) -> None:
    client.publish(0)
    client.submit([job(0, "a")])
    play_groups(ledger, "a")  # version 1 samples its tokens
    client.publish(3, "three")
    assert client.published() == Published(3, "three")
    batch = next(client.batches(1))
    assert (batch.policy_step, batch.version_steps, batch.groups[0].started_step) == (
        3,
        {"1": 1},
        0,
    )
    assert batch.staleness == Staleness(max=2, mean=2.0, unknown_tokens=0)


def test_a_consumer_says_a_lost_publication_again(
    client: Client, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    client.limit_staleness(1, 1)
    client.publish(0)
    client.publish(1)
    client.submit([job(0, "a")])
    play_groups(ledger, "a")
    lose_the_last_publication(ledger)
    with caplog.at_level(logging.WARNING, "rollq"):
        batch = next(client.batches(1))
    assert batch.policy_step == 1
    assert client.published() == Published(1, "1")
    assert "Redis has lost the publication of step 1: it is published again" in caplog.text


def test_a_producer_says_lost_settings_again(client: Client, ledger: Ledger) -> None:
    client.limit_staleness(8, 1)
    client.publish(0)
    client.publish(1)
    client.submit([job(0, "a")])
    lose_the_last_publication(ledger)
    ledger.redis.hdel(ledger.keys.meta, "batch", "staleness", "running")
    client.submit([job(0, "b")])
    standing = reader(ledger).standing()
    assert standing.published == Published(1, "1")
    assert standing.admission and standing.admission.groups_per_batch == 8


def test_another_trainer_has_published_since(
    redis_url: str, client: Client, ledger: Ledger
) -> None:
    client.publish(5)
    client.submit([job(0, "a")])
    play_groups(ledger, "a")
    with Client(redis_url, run="r") as restored:
        restored.publish(2)
    assert next(client.batches(1)).policy_step == 2


@pytest.mark.parametrize("step", [-1, True, 1.0, "1", 1 << 53, None])
def test_a_step_is_a_whole_number(client: Client, step: object) -> None:
    with pytest.raises(
        ContractError, match="run r: the step of a policy must be a whole number of at least 0"
    ):
        client.publish(step)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", 1, "x" * 257, b"1", "\ud800"])
def test_a_version_is_a_text(client: Client, name: object) -> None:
    with pytest.raises(
        ContractError, match="run r: a weight version is a text of 1 to 256 characters, not"
    ):
        client.publish(1, name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "numbers", [(0, 1), (8, -1), (8, 1, 0), (True, 1), (8, 1.5), (10**7, 1), ("8", 1)]
)
def test_admission_takes_whole_numbers(client: Client, numbers: tuple[int, int]) -> None:
    with pytest.raises(
        SettingsError, match=r"must be a whole number of at least [01] and at most 1000000"
    ):
        client.limit_staleness(*numbers)
    assert client.stats()["admission"] is None

"""Staleness of a batch, from the versions of its tokens."""

from dataclasses import replace

import pytest

from rollq.batch import Batch
from rollq.training.staleness import Staleness
from tests.rollq.samples import closed, observed, prompt, sampled, trajectory
from tests.rollq.token_rows import batch_of


def batch(policy_step: int | None, steps: dict[str, int], *versions: str) -> Batch:
    """One trajectory that samples two tokens of each version."""
    turns = [
        event
        for turn, name in enumerate(versions)
        for event in (sampled(turn, version=name), observed(turn))
    ]
    played = replace(trajectory(), events=[prompt(), *turns, closed()])
    made = batch_of([played])
    made.policy_step, made.version_steps = policy_step, steps
    return made


def test_the_oldest_token_and_the_mean_count() -> None:
    made = batch(5, {"a": 5, "b": 4, "c": 2}, "a", "b", "c")
    assert made.staleness == Staleness(max=3, mean=pytest.approx(4 / 3), unknown_tokens=0)


def test_tokens_of_an_unpublished_version_are_counted_apart() -> None:
    assert batch(5, {"a": 4}, "a", "default").staleness == Staleness(
        max=None, mean=1.0, unknown_tokens=2
    )


def test_without_a_published_step_nothing_is_known() -> None:
    assert batch(None, {"1": 1}, "1").staleness == Staleness(max=None, mean=None, unknown_tokens=2)


def test_a_trainer_at_an_earlier_checkpoint_trains_on_later_tokens() -> None:
    assert batch(2, {"3": 3}, "3").staleness == Staleness(max=-1, mean=-1.0, unknown_tokens=0)


def test_arrays_have_the_step_of_each_version() -> None:
    made = batch(5, {"a": 5, "b": 4}, "b", "default", "a")
    for arrays in (made.arrays(), made.packed()):
        assert arrays.version_names == ("b", "default", "a")
        assert arrays.version_steps.tolist() == [4, -1, 5]

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


@pytest.mark.parametrize(
    ("made", "oldest", "mean", "unknown_tokens"),
    [
        (batch(5, {"a": 5, "b": 4, "c": 2}, "a", "b", "c"), 3, 4 / 3, 0),
        (batch(5, {"a": 4}, "a", "default"), None, 1.0, 2),
        (batch(None, {"1": 1}, "1"), None, None, 2),
        (batch(2, {"3": 3}, "3"), -1, -1.0, 0),
    ],
    ids=["oldest and mean", "an unpublished version", "no published step", "an earlier checkpoint"],
)
def test_the_staleness_of_a_batch(
    made: Batch, oldest: int | None, mean: float | None, unknown_tokens: int
) -> None:
    assert made.staleness == Staleness(
        max=oldest, mean=pytest.approx(mean), unknown_tokens=unknown_tokens
    )


def test_arrays_have_the_step_of_each_version() -> None:
    made = batch(5, {"a": 5, "b": 4}, "b", "default", "a")
    for arrays in (made.arrays(), made.packed()):
        assert arrays.version_names == ("b", "default", "a")
        assert arrays.version_steps.tolist() == [4, -1, 5]

"""The sums over trajectories."""

import pytest

from rollq.events import Stop
from rollq.export.summary import Summary
from tests.rollq.export.trajectories import played


def summary(successes: dict[int, tuple[int, int]]) -> Summary:
    """By task: samples, and how many of them succeed."""
    found = Summary()
    for task, (n, c) in successes.items():
        for sample in range(n):
            found.add(played(task, sample, 1.0 if sample < c else 0.0))
    return found


def test_a_summary_of_nothing() -> None:
    empty = Summary()
    assert (empty.reward_mean, empty.turns_mean, dict(empty.pass_hat_k(4))) == (None, None, {})


def test_only_graded_trajectories_count_for_the_reward() -> None:
    found = summary({0: (2, 1), 1: (2, 2)})
    found.add(played(2, 0, None, Stop.FAILED))
    assert found.reward_mean == 0.75
    assert found.turns_mean == 1.0
    assert (found.sampled_tokens, found.total_tokens) == (10, 30)
    assert dict(found.stops) == {"done": 4, "failed": 1}


def test_pass_hat_k_is_a_mean_over_the_tasks_that_have_k_tries() -> None:
    found = summary({0: (4, 4), 1: (4, 2), 2: (1, 0)}).pass_hat_k(5)
    assert found == {1: pytest.approx(0.5), 2: pytest.approx((1 + 1 / 6) / 2), 3: 0.5, 4: 0.5}


def test_a_reward_within_rounding_of_one_is_a_success() -> None:
    found = Summary()
    found.add(played(0, 0, 1.0 - 1e-9))
    found.add(played(0, 1, 0.999))
    assert found.pass_hat_k(1) == {1: 0.5}

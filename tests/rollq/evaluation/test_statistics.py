"""Estimates over tasks, against hand computations."""

import random
from itertools import product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.evaluation.statistics import MOST_DRAWS, Estimate, estimate, pass_hat, resamples


def test_pass_hat_is_unbiased() -> None:
    """Over all outcomes of 4 tries that succeed with 0.7 each, the mean of pass^k is 0.7**k."""
    for k in range(1, 5):
        expected = sum(
            0.7 ** sum(tries) * 0.3 ** (4 - sum(tries)) * pass_hat(sum(tries), 4, k)
            for tries in product((0, 1), repeat=4)
        )
        assert expected == pytest.approx(0.7**k)


def test_the_error_is_that_of_a_mean_over_tasks() -> None:
    found = estimate([1.0, 0.5, 0.0, 0.5])
    assert found is not None
    assert found.mean == 0.5
    # Squared deviations: 0.25, 0, 0.25, 0. Their sum over n - 1 = 3 is 1/6, and the root of 1/6
    # over root 4 is 0.204.
    assert found.stderr == pytest.approx(0.2041241452)


def test_the_interval_is_exact_where_all_resamples_can_be_counted() -> None:
    """Of two tasks, 0 and 1, a quarter of the resamples has mean 0 and a quarter 1: more than 2.5 %
    at each end.
    """
    assert estimate([0.0, 1.0]) == Estimate(0.5, 0.5, 0.0, 1.0)
    assert estimate([0.5, 0.5, 0.5]) == Estimate(0.5, 0.0, 0.5, 0.5)


def test_the_interval_is_that_of_counted_resamples() -> None:
    """Ten tasks, six of which succeed: a resample has B(10, 0.6) successes.

    P(at most 2) = 0.0123 and P(at most 3) = 0.0548, so the lower end is 0.3; P(at least 9) = 0.0464
    and P(10) = 0.0060, so the upper end is 0.9.
    """
    found = estimate([1.0] * 6 + [0.0] * 4)
    assert found is not None
    assert (found.low, found.high) == (0.3, 0.9)


@pytest.mark.parametrize(
    ("tasks", "times"), [(2, 10_000), (100, 10_000), (400, 2500), (1000, 1000), (50_000, 1000)]
)
def test_many_tasks_are_drawn_fewer_times(tasks: int, times: int) -> None:
    assert resamples(tasks) == times
    assert tasks > 1000 or tasks * times <= MOST_DRAWS


def test_the_interval_of_many_tasks_is_that_of_the_normal_distribution() -> None:
    chance = random.Random(2)
    found = estimate([chance.random() for _ in range(1000)])
    assert (
        found is not None
        and found.stderr is not None
        and found.low is not None
        and found.high is not None
    )
    assert found.low == pytest.approx(found.mean - 1.96 * found.stderr, abs=0.2 * found.stderr)
    assert found.high == pytest.approx(found.mean + 1.96 * found.stderr, abs=0.2 * found.stderr)


def test_few_tasks() -> None:
    assert estimate([]) is None
    assert estimate([0.25]) == Estimate(0.25)


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=12), st.randoms()
)
def test_the_interval_holds_the_mean_and_never_changes(
    values: list[float], order: random.Random
) -> None:
    found = estimate(values)
    assert found is not None and found.low is not None and found.high is not None
    assert min(values) <= found.low <= found.mean <= found.high <= max(values)
    assert found == estimate(values)
    assert found.mean == pytest.approx(fmean(values))


@pytest.mark.timeout(120)
def test_most_intervals_hold_the_truth() -> None:
    """200 made-up evaluations of 30 tasks, whose chances of success are uniform in [0, 1], 4 tries
    each.
    """
    chance = random.Random(1)
    held = 0
    for _ in range(200):
        tasks = [chance.random() for _ in range(30)]
        found = estimate([fmean(chance.random() < p for _ in range(4)) for p in tasks])
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= 0.5 <= found.high
    assert 0.88 <= held / 200 <= 0.99

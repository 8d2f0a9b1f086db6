"""Advantages against their formulas, as the papers write them."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.batch import Group
from rollq.errors import ContractError
from rollq.training.advantages import ESTIMATORS, dr_grpo, estimate, grpo, rloo
from tests.rollq.samples import trajectory
from tests.rollq.token_rows import batch_of

rewards = st.lists(st.integers(-40, 40).map(lambda quarter: quarter / 4), min_size=2, max_size=16)


def made(*rewards: float | None) -> Group:
    return Group(
        id="g", seq=1, size=4, trajectories=[trajectory(r) for r in rewards], dead=["r/g/3"]
    )  # type: ignore[arg-type]


@given(rewards.filter(lambda values: len(set(values)) > 1))
def test_grpo(values: list[float]) -> None:
    mean, deviation = statistics.mean(values), statistics.pstdev(values)
    assert grpo(values) == pytest.approx([(r - mean) / deviation for r in values])


@given(rewards)
def test_dr_grpo(values: list[float]) -> None:
    assert dr_grpo(values) == pytest.approx(
        [r - statistics.mean(values) for r in values], abs=1e-12
    )


@given(rewards)
def test_leave_one_out(values: list[float]) -> None:
    others = [values[:i] + values[i + 1 :] for i in range(len(values))]
    expected = [r - statistics.mean(rest) for r, rest in zip(values, others, strict=True)]
    assert rloo(values) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(rewards)
def test_a_group_has_no_advantage_over_itself_and_keeps_its_order(
    name: str, values: list[float]
) -> None:
    found = estimate(values, name)
    assert sum(found) == pytest.approx(0, abs=1e-9)
    assert sorted(range(len(values)), key=lambda i: (values[i], i)) == sorted(
        range(len(values)), key=lambda i: (found[i], i)
    )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rewards_that_agree_and_a_member_alone_have_no_advantage(name: str) -> None:
    assert estimate([0.1] * 3, name) == [0.0] * 3
    assert estimate([1.0], name) == [0.0]
    assert estimate([], name) == []


def test_rounding_is_no_difference() -> None:
    assert grpo([0.1 + 0.2, 0.3]) == [0.0, 0.0]


def test_an_unknown_estimator_is_refused_by_name() -> None:
    with pytest.raises(
        ContractError, match=r"no advantages 'ppo': the estimators are grpo, dr_grpo, rloo"
    ):
        estimate([0.0], "ppo")


def test_a_dead_member_has_no_advantage_and_enters_no_mean() -> None:
    group = made(0.0, 1.0, 1.0)  # of 4; one is dead
    assert group.advantages == grpo([0.0, 1.0, 1.0])
    batch = batch_of([trajectory(0.0), trajectory(1.0)], [trajectory(1.0)], dead=["r/g/3"])
    assert batch.advantages == [-1.0, 1.0, 0.0]
    assert batch.arrays(advantages="rloo").advantages.tolist() == [-1.0, 1.0, 0.0]
    assert batch.arrays(advantages="dr_grpo").advantages.tolist() == [-0.5, 0.5, 0.0]


def test_a_trajectory_without_a_reward_cannot_shift_the_advantages_of_others() -> None:
    with pytest.raises(ContractError, match="job r/g/0: it has no reward"):
        made(0.0, None, 1.0).advantages  # noqa: B018

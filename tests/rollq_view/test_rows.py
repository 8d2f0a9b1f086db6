"""Rows: which a query chooses, in which order, and what is counted."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_view.rows import LONGEST_WHY, SORTS, Query, Row, groups, histogram, select, summary, why


def row(sample: int, **changes: object) -> Row:
    first = Row(
        key=f"r/g/{sample}", job=f"r/g/{sample}", run="r", group="g", sample=sample, env="shop", split="train", task=1,  # noqa: E501
        state="done", stop="done", reward=1.0, turns=3,
    )  # fmt: skip
    return replace(first, **changes)  # type: ignore[arg-type]


rewards = st.one_of(st.none(), st.floats(-2, 2), st.just(math.nan), st.just(math.inf))
rows = st.lists(rewards, max_size=30).map(
    lambda all: [row(n, reward=reward) for n, reward in enumerate(all)]
)


@given(rows, st.sampled_from(SORTS), st.booleans())
def test_sorting_keeps_all_rows_and_puts_unknown_values_last(
    all: list[Row], by: str, descending: bool
) -> None:
    found = select(all, Query(sort=by, descending=descending))
    assert sorted(r.sample for r in found) == [r.sample for r in all]
    known = [r.reward for r in found if r.reward is not None and not math.isnan(r.reward)]
    if by == "reward":
        assert known == sorted(known, reverse=descending)
        assert all == [] or [r.reward for r in found][: len(known)] == known


@given(rows)
def test_counts_and_the_histogram_have_every_graded_row_once(all: list[Row]) -> None:
    counts = summary(all)
    finite = [r.reward for r in all if r.reward is not None and math.isfinite(r.reward)]
    assert counts["rollouts"] == len(all)
    assert sum(counts["histogram"]["counts"]) == len(finite)
    assert sum(histogram(finite)["counts"]) == len(finite)


def test_filters_choose_by_every_field() -> None:
    all = [
        row(0),
        row(1, reward=0.0, why="database no"),
        row(2, stop="", state="leased", reward=None),
        row(3, stop="", state="dead", reward=None, failure="engine"),
        row(4, env="tau2:retail", group="h"),
    ]
    chosen = {
        "reward": ("failed", [1]), "outcome": ("leased", [2]), "failure": ("engine", [3]), "env": ("tau2:retail", [4]),  # noqa: E501
        "group": ("h", [4]), "text": ("DATABASE", [1]), "state": ("dead", [3]),
    }  # fmt: skip
    for name, (value, samples) in chosen.items():
        assert [r.sample for r in select(all, Query(**{name: value}))] == samples, name  # type: ignore[arg-type]


def test_a_group_has_its_members_by_sample_and_their_spread() -> None:
    [group] = groups(
        [row(1, reward=0.0), row(0, reward=1.0), row(2, reward=None, stop="", state="dead")],
        {"g": "open"},
    )
    assert [member["sample"] for member in group["members"]] == [0, 1, 2]
    assert (group["mean"], group["spread"], group["state"]) == (0.5, 0.5, "open")


@pytest.mark.parametrize("state", ["leased", "acked", "unreadable"])
def test_a_group_whose_ends_are_not_all_known_has_no_spread(state: str) -> None:
    """As one that was acknowledged between two looks, or is being played."""
    [group] = groups([row(0, reward=1.0), row(1, reward=None, stop="", state=state)], {})
    assert (group["ended"], group["mean"], group["spread"]) == (1, None, None)


def test_huge_rewards_are_counted_as_well() -> None:
    all = [row(0, reward=0.0), row(1, reward=1e300)]
    [group], counts = groups(all, {}), summary(all)
    assert (group["mean"], group["spread"], counts["reward_mean"]) == (5e299, 5e299, 5e299)


def test_a_range_that_no_float_holds_has_a_histogram() -> None:
    assert histogram([-1e308, 1e308, 0.0])["counts"] == [1, *[0] * 4, 1, *[0] * 3, 1]


def test_why_says_what_is_false_or_not_empty() -> None:
    assert (
        why({"database": False, "outputs": True, "wrong": ["a", "b"], "untold": []})
        == "database no · wrong a, b"
    )
    assert (
        why({"reason": "Traceback (most recent call last):\n  x\nValueError: no"}, "env")
        == "env: ValueError: no"
    )
    assert len(why({"reason": "x" * 10_000})) == LONGEST_WHY

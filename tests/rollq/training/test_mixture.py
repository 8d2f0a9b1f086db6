"""Mixtures: counts against weights, rests against a hand computation, and the same groups again
from any point.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq import ContractError, Job
from rollq.training.mixture import Mixture, Part, Rest, Weight


def tasks(env: str, number: int, **changes: Any) -> list[Job]:
    return [Job(env=env, task=task, **changes) for task in range(number)]


def part(env: str, weight: Weight, number: int = 5) -> Part:
    return Part(tasks(env, number), weight)


def by_step(mixture: Mixture) -> Iterator[list[Job]]:
    jobs = iter(mixture)
    while step := list(islice(jobs, mixture.groups_per_step)):
        yield step


def envs(jobs: Sequence[Job]) -> str:
    return "".join(job.env for job in jobs)


def test_weights_change_with_the_step() -> None:
    mixture = Mixture(
        [part("a", {0: 1, 2: 3, 4: 0}), part("b", lambda step: min(step, 1))], 4, steps=6
    )
    counts = [Counter(envs(step)) for step in by_step(mixture)]
    assert [(count["a"], count["b"]) for count in counts] == [
        (4, 0),
        (2, 2),
        (3, 1),
        (3, 1),
        (0, 4),
        (0, 4),
    ]


def test_a_part_goes_through_its_tasks_before_it_begins_again() -> None:
    jobs = list(Mixture([part("a", 1, 4)], 4, steps=3, seed=1))
    passes = [[job.task for job in jobs[i : i + 4]] for i in (0, 4, 8)]
    assert [sorted(each) for each in passes] == [[0, 1, 2, 3]] * 3
    assert len({tuple(each) for each in passes}) > 1  # in another order
    for number, (suffix, each) in enumerate(
        zip(("", ".e1", ".e2"), (jobs[:4], jobs[4:8], jobs[8:]), strict=True)
    ):
        assert {job.group for job in each} == {f"a.train.{task}{suffix}" for task in range(4)}
        assert {job.seed for job in each} == {number}
    assert [job.task for job in Mixture([part("a", 1, 4)], 4, steps=3, seed=2)] != [
        job.task for job in jobs
    ]


def test_all_samples_of_a_group_follow_one_another() -> None:
    jobs = list(Mixture([Part(tasks("a", 2, size=2, spare=1))], 1, steps=2))
    assert [job.sample for job in jobs] == [0, 1, 2] * 2
    assert [len({job.group for job in jobs[i : i + 3]}) for i in (0, 3)] == [1, 1]


def resting(
    known: Mapping[int, Mapping[str, float]], steps: int, **of_rest: float
) -> list[list[int]]:
    """The tasks of each step, sorted, of three tasks and three groups a step."""
    rest = Rest(lambda step: known.get(step, {}), steps=2, **of_rest)
    return [
        sorted(job.task for job in step)
        for step in by_step(Mixture([part("a", 1, 3)], 3, steps=steps, rest=rest))
    ]


def test_a_settled_task_rests_and_comes_back_by_hand() -> None:
    """Passes have all that are awake, so with one asleep the other two share three groups: 2 + 1,
    then 1 + 2.
    """
    found = resting({1: {"a.train.0": 1.0, "a.train.1": 0.5}}, 5)
    assert found[0] == [0, 1, 2]
    assert 0 in found[3]
    assert 0 not in found[1] + found[2]
    assert Counter(found[1] + found[2]) == {1: 3, 2: 3}
    assert resting({1: {"a.train.0": 0.99}}, 3) == [[0, 1, 2]] * 3  # neither always nor never
    assert 0 not in resting({1: {"a.train.0": 0.9}}, 2, high=0.9)[1]
    assert 0 not in resting({1: {"a.train.0": -1.0}}, 2)[1]
    extended = resting(
        {1: {"a.train.0": 0.0}, 2: {"a.train.0": 0.0}}, 5
    )  # another group said so a step later
    assert [0 in step for step in extended] == [True, False, False, False, True]


def test_a_part_that_rests_leaves_its_share_to_the_others() -> None:
    known = {1: {"a.train.0": 1.0, "a.train.1": 0.0}}
    parts = [part("a", 3, 2), part("b", 1, 2)]
    mixture = Mixture(parts, 4, steps=4, rest=Rest(lambda step: known.get(step, {}), steps=2))
    assert ["".join(sorted(envs(step))) for step in by_step(mixture)] == [
        "aaab",
        "bbbb",
        "bbbb",
        "aaab",
    ]
    mixture = Mixture(parts[:1], 4, steps=2, rest=Rest(lambda step: known.get(step, {}), steps=2))
    assert [envs(step) for step in by_step(mixture)] == [
        "aaaa",
        "aaaa",
    ]  # else no group would come any more


@given(
    numbers=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4
    ).filter(lambda numbers: any(weight for _, weight in numbers)),
    groups=st.integers(1, 7),
    seed=st.integers(0, 3),
    rests=st.integers(1, 3),
)
def test_the_same_groups_again_and_none_twice(
    numbers: list[tuple[int, int]], groups: int, seed: int, rests: int
) -> None:
    parts = [part(f"e{index}", weight, number) for index, (number, weight) in enumerate(numbers)]
    steps = 6

    def rates(step: int) -> dict[str, float]:
        numbers = random.Random(step)
        return {
            job.task_name: numbers.choice([0.0, 0.5, 1.0])
            for part in parts
            for job in part.jobs
            if step
        }

    jobs = list(Mixture(parts, groups, steps, seed, Rest(rates, rests)))
    assert len(jobs) == len({job.group for job in jobs}) == steps * groups
    assert list(Mixture(parts, groups, steps, seed, Rest(rates, rests))) == jobs
    assert (
        list(islice(Mixture(parts, groups, None, seed, Rest(rates, rests)), len(jobs))) == jobs
    )  # longer, the same
    assert {job.env for job in jobs} <= {part.jobs[0].env for part in parts if part.weight}

    drawn, total = Counter[str](), sum(weight for _, weight in numbers)
    for done, job in enumerate(Mixture(parts, groups, steps, seed), 1):
        drawn[job.env] += 1
        for index, (_, weight) in enumerate(numbers):
            assert drawn[f"e{index}"] < done * weight / total + 1
    for index, (_, weight) in enumerate(
        numbers
    ):  # what none has too much of, none lacks by more than that in sum
        assert drawn[f"e{index}"] > steps * groups * weight / total - len(numbers)


JOBS = tasks("a", 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Part([]), "a part of a mixture needs a list of at least one Job"),
        (lambda: Part(iter(JOBS)), "needs a list"),  # type: ignore[arg-type]
        (lambda: Part([1]), "the tasks of a mixture are Jobs, not 1"),  # type: ignore[list-item]
        (
            lambda: Mixture([Part(JOBS, -1)], 2),
            "the part of a/train: its weight at step 0 must be a number of at least",
        ),
        (lambda: Mixture([Part(JOBS, float("nan"))], 2), "not nan"),
        (
            lambda: Part(JOBS, {0: 1.0, 5: -2.0}),
            "its weight at step 5 must be a number of at least 0, not -2.0",
        ),
        (lambda: Part(JOBS, {1: 1.0}), "needs whole steps, of which the first is 0"),
        (lambda: Part(JOBS, {}), "needs whole steps"),
        (
            lambda: Mixture([Part(JOBS, 0), Part(JOBS, 0)], 2),
            "all parts of the mixture have weight 0 at step 0",
        ),
        (lambda: list(Mixture([Part(JOBS, {0: 1.0, 3: 0.0})], 2, 4)), "have weight 0 at step 3"),
        (lambda: Mixture([], 2), "a list of at least one Part"),
        (lambda: Mixture(Part(JOBS), 2), "a list of at least one Part"),  # type: ignore[arg-type]
        (lambda: Mixture(JOBS, 2), "a list of at least one Part"),  # type: ignore[arg-type]
        (
            lambda: Mixture([Part(JOBS)], 0),
            "groups_per_step of a mixture must be a whole number of at least 1, not 0",
        ),
        (lambda: Mixture([Part(JOBS)], 1, 0), "steps of a mixture"),
        (lambda: Mixture([Part(JOBS)], 1, seed=-1), "seed of a mixture"),
        (
            lambda: Rest(lambda step: {}, steps=0),
            "for which tasks rest must be a whole number of at least 1, not 0",
        ),
        (lambda: Rest(lambda step: {}, steps=1, low=1.0), "1.0 is not below 1.0"),
    ],
)
def test_what_is_no_mixture_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        make()

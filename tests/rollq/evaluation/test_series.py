"""The evaluations of a training run by step."""

from collections.abc import Mapping, Sequence

from rollq.evaluation.result import Result
from rollq.evaluation.series import series, series_json, series_lines
from tests.rollq.evaluation.results import result_of, task_of


def of_version(sampled: str, rewards: Mapping[int, Sequence[float]], **more: object) -> Result:
    tasks = [task_of(task, tries, {sampled: 40}) for task, tries in rewards.items()]
    return result_of(rewards, **{"name": sampled, "version": sampled, "tasks": tasks, **more})


FIRST = of_version("0", {0: [0.0, 0.0], 1: [1.0, 0.0]})
LATER = of_version("10", {0: [1.0, 0.0], 1: [1.0, 1.0]})
OTHER_TASKS = of_version("10", {7: [1.0, 1.0]}, name="hard", left_out=["g"], dead=1)
UNKNOWN = of_version("11", {0: [1.0, 1.0], 1: [1.0, 1.0]}, name="best", version="best")
STEPS = {"0": 0, "10": 10}


def test_a_line_for_each_by_step() -> None:
    points = series([UNKNOWN, OTHER_TASKS, LATER, FIRST], STEPS, FIRST)
    assert [(point.step, point.result.name) for point in points] == [
        (0, "0"),
        (10, "10"),
        (10, "hard"),
        (None, "best"),
    ]
    assert series_lines(points, FIRST) == [
        "step  name          tasks   reward                  pass^1  pass^2  against e@0",
        "0     0             2       0.250 (0.000 to 0.500)  0.250   0.000   -",
        "10    10            2       0.750 (0.500 to 1.000)  0.750   0.500   +0.500 "
        "(+0.500 to +0.500)",
        "10    hard          1 of 2  1.000                   1.000   1.000   -",
        "-     best (mixed)  2       1.000 (1.000 to 1.000)  1.000   1.000   +0.750 "
        "(+0.500 to +1.000)",
    ]
    assert [line.split()[:2] for line in series_lines(series([LATER], STEPS, None), None)] == [
        ["step", "name"],
        ["10", "10"],
    ]


def test_its_json_is_that_of_results_without_their_tasks() -> None:
    first, later = series_json(series([LATER, FIRST], STEPS, FIRST))
    assert (first["step"], first["reward_difference"], later["step"], later["reward_mean"]) == (
        0,
        None,
        10,
        0.75,
    )
    assert later["reward_difference"]["mean"] == 0.5
    assert "per_task" not in later and "failures" not in later

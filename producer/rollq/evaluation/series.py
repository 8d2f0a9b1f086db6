"""The evaluations of a training run in the order of its steps, as text and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rollq.evaluation.report import estimate_json, mean_in_interval, summary_json, title
from rollq.evaluation.result import Result
from rollq.evaluation.statistics import Estimate, estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One evaluation of the series."""

    step: int | None
    """The step of its weights, where that is known."""
    result: Result
    difference: Estimate | None
    """Difference of rewards from the result that the series is compared with. None where their
    tasks differ.
    """


def series(
    results: Iterable[Result], steps: Mapping[str, int], before: Result | None
) -> list[Point]:
    """The points of a series by step, those of one step by name. `steps` are those of weight
    versions. The results are compared with `before`.
    """
    points = []
    for result in results:
        step = steps.get(result.version or "")
        points.append(Point(step=step, result=result, difference=_difference(result, before)))
    return sorted(points, key=lambda point: (point.step is None, point.step, point.result.name))


def _difference(result: Result, before: Result | None) -> Estimate | None:
    if before is None or result == before:
        return None
    theirs = {task.key: task.reward for task in before.tasks}
    if theirs.keys() != {task.key for task in result.tasks}:
        return None
    return estimate([task.reward - theirs[task.key] for task in result.tasks])


def series_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points as `--json` has them: each result as a whole, with `step` and
    `reward_difference`.
    """
    rows = []
    for point in points:
        difference = point.difference and estimate_json(point.difference)
        summary = summary_json(point.result)
        rows.append({"step": point.step, **summary, "reward_difference": difference})
    return rows


def series_lines(points: Sequence[Point], before: Result | None) -> list[str]:
    """A table with a line for each evaluation."""
    shown = sorted({1, max(point.result.size for point in points)})
    head = ["step", "name", "tasks", "reward"]
    head += [f"pass^{k}" for k in shown]
    if before:
        head.append(f"against {title(before)}")
    rows = [head, *(_row(point, shown, bool(before)) for point in points)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _row(point: Point, shown: Sequence[int], compared: bool) -> list[str]:
    result = point.result
    mixed = " (mixed)" if result.other_versions else ""
    tasks = str(len(result.tasks))
    if result.left_out:
        tasks += f" of {len(result.tasks) + len(result.left_out)}"
    row = ["-" if point.step is None else str(point.step), f"{result.name or '-'}{mixed}", tasks]
    row.append(mean_in_interval(result.reward) if result.reward else "-")
    for k in shown:
        is_there = result.tasks and k <= result.size
        row.append(f"{fmean(result.pass_hat(k)):.3f}" if is_there else "-")
    if compared:
        row.append(mean_in_interval(point.difference, "+") if point.difference else "-")
    return row

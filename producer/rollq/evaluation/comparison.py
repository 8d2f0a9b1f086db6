"""Two evaluations of the same tasks, compared task by task.

The difference is taken within each task, so how hard the tasks are cancels out, and its interval is
narrower than those of the two means suggest (arXiv 2411.00640, section 4.2).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rollq.errors import SettingsError
from rollq.evaluation.result import Result, TaskKey
from rollq.evaluation.statistics import Estimate, estimate

SHOWN_TITLES = 5
"""Tasks that an error names."""


class Change(NamedTuple):
    """A task whose mean reward differs."""

    task: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The changes from one evaluation to another. Positive differences are improvements."""

    before: str
    """Name of the evaluation that it is compared with."""
    reward: Estimate
    """The difference of mean rewards, paired by task."""
    pass_hat_k: dict[int, Estimate]
    """The difference of pass^k, by k up to the smaller number of tries."""
    better: Sequence[Change]
    """Largest change first."""
    worse: Sequence[Change]
    """Largest change first."""


def compare(after: Result, before: Result, name: str) -> Comparison:
    """`after` against `before`, which is called `name`. Raises SettingsError when their tasks
    differ.
    """
    check_tasks(after.run, [task.key for task in after.tasks], before, name)
    theirs = {task.key: task for task in before.tasks}
    paired = replace(before, tasks=[theirs[task.key] for task in after.tasks])
    changes = []
    for now, then in zip(after.tasks, paired.tasks, strict=True):
        changes.append(Change(now.title, then.reward, now.reward))
    pass_hat_k = {}
    for k in range(1, min(after.size, before.size) + 1):
        pass_hat_k[k] = _mean_difference(after.pass_hat(k), paired.pass_hat(k))
    changes.sort(key=lambda change: abs(change.after - change.before), reverse=True)
    return Comparison(
        before=name,
        reward=_mean_difference(
            [task.reward for task in after.tasks], [task.reward for task in paired.tasks]
        ),
        pass_hat_k=pass_hat_k,
        better=[change for change in changes if change.after > change.before],
        worse=[change for change in changes if change.after < change.before],
    )


def check_tasks(run: str, tasks: Iterable[TaskKey], before: Result, name: str) -> None:
    """Raises SettingsError when these tasks of the run are not those of `before`."""
    ours, theirs = {*tasks}, {task.key for task in before.tasks}
    if ours != theirs or not ours:
        raise SettingsError(
            f"run {run} cannot be compared with {name}: their graded tasks differ. "
            f"{_only(run, ours - theirs)}{_only(name, theirs - ours)} A comparison is paired by "
            "task: evaluate the same tasks, and play dead tries again"
        )


def _mean_difference(after: Sequence[float], before: Sequence[float]) -> Estimate:
    mean = estimate([now - then for now, then in zip(after, before, strict=True)])
    assert mean is not None  # there are tasks
    return mean


def _only(name: str, keys: Collection[TaskKey]) -> str:
    if not keys:
        return ""
    titles = ["/".join(map(str, key)) for key in sorted(keys)]
    more = f" and {len(titles) - SHOWN_TITLES} more" if len(titles) > SHOWN_TITLES else ""
    return f"Only in {name}: {', '.join(titles[:SHOWN_TITLES])}{more}."

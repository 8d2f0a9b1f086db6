"""Reward functions by name: `judge`, `assertions`, and whatever installed packages add.

A name is an entry point of the group `rollq.rewards`: a function of the trajectory and the environment's grade, and of
the job's reward_args by keyword. It grades in the worker, so what it raises fails the attempt and is never a reward.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from rollq.env import Grade, RewardFunction, Task
from rollq.errors import JobFailure
from rollq.job import Job, Json
from rollq.sampling import number
from rollq.settings import Endpoint

GROUP = "rollq.rewards"
JUDGE = "judge"
ASSERTIONS = "assertions"
LONGEST_S = 60.0
"""Seconds for a reward function that has no `longest_s` of its own."""
MOST_S = 3600.0


def reward_factory(
    name: str,
    args: Mapping[str, Json],
    *,
    seed: int,
    endpoints: Mapping[str, Endpoint],
    check: Callable[[], None] | None = None,
    away: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> RewardFunction | None:
    """The reward function of a job; None: the environment's grade counts.

    `check` is called while the judge waits, and raises when the attempt must stop; `away` is around the time for which
    its endpoint is away. Raises JobFailure for an unknown name and for arguments that the function does not take.
    """
    if not name:
        return None
    if name in (JUDGE, ASSERTIONS):
        from rollq_worker.rewards.assertions import Assertions  # they need requests
        from rollq_worker.rewards.judge import Judge

        made = Judge if name == JUDGE else Assertions
        return made(args, endpoints, seed=seed, check=check, away=away)
    function = _load(name)
    try:
        inspect.signature(function).bind(None, None, **args)
    except (TypeError, ValueError) as e:  # a ValueError: it was not written in Python
        raise JobFailure(f"reward {name!r} with reward_args {dict(args)!r:.200}: {e}") from e
    bound = partial(function, **args)
    if (limit_s := getattr(function, "longest_s", None)) is not None:
        bound.longest_s = _seconds(name, limit_s)  # type: ignore[attr-defined]
    return bound


def check_judged(job: Job, task: Task) -> None:
    """Raises JobFailure for a task whose assertions nothing would judge: its reward would not be the benchmark's."""
    if task.assertions and not job.reward:
        raise JobFailure(
            f"{job.env}/{job.split}/{job.task}: a model must judge {len(task.assertions)} assertions of this task, so "
            f"the job needs the reward {ASSERTIONS!r}, with an endpoint and a model in reward_args"
        )


@cache
def _load(name: str) -> Callable[..., float | Grade]:
    entries = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if len({entry.value for entry in entries}) > 1:
        values = " and ".join(entry.value for entry in entries)
        raise JobFailure(f"reward {name!r} is claimed by {values}: uninstall one of the two packages")
    if not entries:
        names = ", ".join(sorted({JUDGE, ASSERTIONS, *(entry.name for entry in entry_points(group=GROUP))}))
        raise JobFailure(f"reward {name!r} is unknown here; there are {names} (packages add more: {GROUP!r})")
    try:
        function: Callable[..., float | Grade] = entries[0].load()
    except Exception as e:  # other people's code
        raise JobFailure(f"reward {name!r} ({entries[0].value}): {type(e).__name__}: {e}") from e
    if not callable(function):
        raise JobFailure(f"reward {name!r}: {entries[0].value} is a {type(function).__name__}, not a function")
    return function


def _seconds(name: str, limit_s: Any) -> float:
    if number(limit_s) and 0 < limit_s <= MOST_S:
        return float(limit_s)
    raise JobFailure(f"reward {name!r}: its longest_s must be seconds, at most {MOST_S:g}, not {limit_s!r:.60}")


def longest_s(reward: RewardFunction) -> float:
    """Longest time in seconds that this function takes."""
    return float(getattr(reward, "longest_s", LONGEST_S))

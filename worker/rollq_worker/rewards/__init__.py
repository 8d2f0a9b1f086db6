"""Reward functions by name: `judge`, `assertions`, and whatever installed packages add.

A name is an entry point of the group `rollq.rewards`: a function of the trajectory and the
environment's grade, and of the job's reward_args by keyword. It grades in the worker, so what it
raises fails the attempt and is never a reward.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from rollq.env import RewardFunction, Task
from rollq.errors import JobFailure
from rollq.job import Job, Json
from rollq.numbers import is_number
from rollq.settings import Endpoint
from rollq_worker.extensions.plug_ins import check_arguments, function_named

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
    """The reward function of a job; None if the environment's grade counts.

    `check` and `away` are those of `ChatModel`. Raises JobFailure for an unknown name and for
    arguments that the function does not take.
    """
    if not name:
        return None
    if name in (JUDGE, ASSERTIONS):
        from rollq_worker.rewards.assertions import Assertions  # they need requests
        from rollq_worker.rewards.judge import Judge

        made = Judge if name == JUDGE else Assertions
        return made(args, endpoints, seed=seed, check=check, away=away)
    function = function_named("reward", name, GROUP, frozenset({JUDGE, ASSERTIONS}))
    check_arguments("reward", name, function, 2, "reward_args", args)
    bound = partial(function, **args)
    if (limit_s := getattr(function, "longest_s", None)) is not None:
        bound.longest_s = _seconds(name, limit_s)  # type: ignore[attr-defined]
    return bound


def check_judged(job: Job, task: Task) -> None:
    """Raises JobFailure for a task whose assertions nothing would judge: its reward would not be
    the benchmark's.
    """
    if task.assertions and not job.reward:
        raise JobFailure(
            f"{job.env}/{job.split}/{job.task}: a model must judge {len(task.assertions)} "
            f"assertions of this task, so the job needs the reward {ASSERTIONS!r}, with an "
            "endpoint and a model in reward_args"
        )


def _seconds(name: str, limit_s: Any) -> float:
    if is_number(limit_s) and 0 < limit_s <= MOST_S:
        return float(limit_s)
    raise JobFailure(
        f"reward {name!r}: its longest_s must be seconds, at most {MOST_S:g}, not {limit_s!r:.60}"
    )


def longest_s(reward: RewardFunction) -> float:
    """Longest time in seconds that this function takes."""
    return float(getattr(reward, "longest_s", LONGEST_S))

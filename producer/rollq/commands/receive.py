"""Code that `pull`, `eval` and `demo` share: waiting for batches, and writing them down before they
are acknowledged.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from rollq.batch import Batch
from rollq.client.consuming.consumer import Consumer
from rollq.client.waits import WaitLog
from rollq.errors import ContractError, PullTimeout
from rollq.events import Closed
from rollq.export.output import TrajectoryFile
from rollq.export.record import Unexportable
from rollq.trajectory import Trajectory

LOOK_S = 5.0
"""Seconds between two looks at the run while waiting."""


def batches(
    consumer: Consumer,
    look: Callable[[], int],
    *,
    timeout: float | None = None,
    every_s: float = LOOK_S,
    explain: Callable[[int], str] = lambda groups: "",
) -> Iterator[Batch]:
    """Batches until a sealed run has no more, or until `look` returns 0.

    `look` is called before each batch and every `every_s` seconds of waiting. It shows the run's
    state and returns how many groups the next batch may have. `explain` gets that number and says
    why a batch does not come; it is logged when one takes long. Raises PullTimeout when `timeout`
    seconds have passed (None waits without end).
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    wait = WaitLog(lambda: explain(groups))
    while groups := look():
        try:
            batch = consumer.next(groups, min(every_s, max(0.0, deadline - time.monotonic())))
        except PullTimeout:
            if time.monotonic() >= deadline:
                raise
            wait.log_when_due()
            continue
        if batch is None:
            return
        yield batch
        wait = WaitLog(lambda: explain(groups))


def save(batch: Batch, out: TrajectoryFile | None) -> bool:
    """Writes the batch down, and tells whether it may be acknowledged.

    False when a trajectory cannot be exported: its job is rejected, and nothing of the batch is
    held any more. Raises NotHeld and what `TrajectoryFile.save` raises.
    """
    try:
        if out:
            out.save(_with_rewards(batch))
    except Unexportable as e:
        batch.reject(e.job_id, str(e))
        return False
    return True


def _with_rewards(batch: Batch) -> list[Trajectory]:
    """The batch's trajectories with the rewards of the reward function, if there is one; `info` has
    the environment's then. Raises Unexportable when `info` cannot be read.
    """
    trajectories: list[Trajectory] = []
    for group in batch.groups:
        if group.scores is None:
            trajectories += group.trajectories
        else:
            trajectories += map(_with_reward, group.trajectories, group.scores)
    return trajectories


def _with_reward(trajectory: Trajectory, reward: float) -> Trajectory:
    end = cast(Closed, trajectory.closed)
    try:
        info = {**end.info, "environment_reward": end.reward}
    except ContractError as e:
        raise Unexportable.of(trajectory, e) from e
    return replace(
        trajectory, events=[*trajectory.events[:-1], replace(end, reward=reward, info=info)]
    )


def unfinished_and_dead(stats: Mapping[str, Any]) -> str:
    """The jobs that a wait is for, and those it is not for any more."""
    return f"{stats['queued']} queued, {stats['leased']} being played, {stats['dead']} dead"

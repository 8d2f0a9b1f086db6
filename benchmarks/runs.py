"""Runs of an environment's tasks through Redis and Celery, for the benchmarks that have a worker
process.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from rollq.client.client import Client
from rollq.job import Job
from rollq_worker.environments import domain

SPLITS = {
    "shop": "train",
    "tau2_2025:retail": "train",
    "tau2_2025:airline": "train",
    "tau_bench:retail": "test",
    "tau_bench:airline": "test",
}
"""The environments that are played, and the split of each."""
TIMEOUT_S = 600.0

Rollout = dict[str, Any]
"""reward, turns and tokens of one."""


def indices(env: str, tasks: int) -> list[int]:
    """That many tasks of the environment's split, from the first one again after the last."""
    count = domain(env).splits()[SPLITS[env]]
    return [index % count for index in range(tasks)]


def submit(client: Client, env: str, tasks: Sequence[int], size: int) -> None:
    """Submits a group of `size` samples for each, all of them at once."""
    jobs = (
        Job(env=env, split=SPLITS[env], task=task, group=f"{place}", size=size)
        for place, task in enumerate(tasks)
    )
    client.submit(jobs, ahead=len(tasks))
    client.seal()


def wait_until_done(client: Client, jobs: int, look_every_s: float = 0.2) -> None:
    """Exits when a job has died or time is up."""
    until = time.monotonic() + TIMEOUT_S
    while (stats := client.stats())["done"] + stats["dead"] < jobs:
        if time.monotonic() > until:
            sys.exit(f"the worker has not finished within {TIMEOUT_S:g} s: {stats}")
        time.sleep(look_every_s)
    if stats["dead"]:
        sys.exit(f"{stats['dead']} jobs are dead: {client.dead()[0]}")


def rollouts(client: Client) -> list[Rollout]:
    """What was played, acknowledged."""
    found = []
    for batch in client.batches(groups=1):
        for one in batch.trajectories:
            found.append({"reward": one.reward, "turns": one.turns, "tokens": len(one.tokens)})
        batch.ack()
    return found


def require_perfect(name: str, played: Sequence[Rollout]) -> None:
    """Exits when a reward is not 1.0."""
    rewards = {rollout["reward"] for rollout in played}
    if rewards != {1.0}:
        sys.exit(
            f"{name} earned {sorted(rewards)}, not 1.0 everywhere: it is not the work to be "
            "measured"
        )


def turns_of(played: Sequence[Rollout]) -> int:
    return sum(rollout["turns"] for rollout in played)

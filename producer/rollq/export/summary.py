"""Sums over many trajectories: reward, pass^k, stops, turns, tokens. Keeps counts, not the
trajectories.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollq.evaluation.statistics import SUCCESS, pass_hat
from rollq.trajectory import Trajectory


@dataclass(slots=True)
class Tries:
    """The graded samples of one task."""

    graded: int = 0
    successes: int = 0


@dataclass(slots=True)
class Summary:
    """Sums over trajectories. Add them, then read the numbers."""

    graded: int = 0
    reward: float = 0.0
    """Sum over the graded trajectories."""
    turns: int = 0
    sampled_tokens: int = 0
    total_tokens: int = 0
    trajectories: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    tasks: dict[tuple[str, str, int], Tries] = field(default_factory=dict)
    """Tries by environment, split and task."""

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories += 1
        self.turns += trajectory.turns
        self.sampled_tokens += trajectory.sampled_tokens
        self.total_tokens += len(trajectory.tokens)
        self.stops[str(trajectory.stop)] += 1
        if trajectory.reward is not None:
            self.graded += 1
            self.reward += trajectory.reward
            job = trajectory.job
            tries = self.tasks.setdefault((job.env, job.split, job.task), Tries())
            tries.graded += 1
            tries.successes += trajectory.reward >= SUCCESS

    @property
    def reward_mean(self) -> float | None:
        """Mean over the graded trajectories; None when there are none."""
        return self.reward / self.graded if self.graded else None

    @property
    def turns_mean(self) -> float | None:
        return self.turns / self.trajectories if self.trajectories else None

    def numbers(self, most: int) -> dict[str, Any]:
        """Numbers that `rollq demo` reports; pass^k for k from 1 to `most`."""
        return {
            "reward_mean": self.reward_mean,
            "pass_hat_k": {str(k): value for k, value in self.pass_hat_k(most).items()},
            "turns_mean": self.turns_mean,
            "sampled_tokens": self.sampled_tokens,
            "total_tokens": self.total_tokens,
            "stops": dict(self.stops),
        }

    def pass_hat_k(self, most: int) -> Mapping[int, float]:
        """pass^k for k from 1 to `most`: the chance that k tries at a task all succeed.

        The mean over tasks of `pass_hat`. Tasks with fewer than k graded tries are left out for
        that k.
        """
        means = {}
        for k in range(1, most + 1):
            tasks = [task for task in self.tasks.values() if task.graded >= k]
            if tasks:
                estimates = [pass_hat(task.successes, task.graded, k) for task in tasks]
                means[k] = sum(estimates) / len(estimates)
        return means

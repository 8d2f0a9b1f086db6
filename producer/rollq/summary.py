"""What a run's trajectories add up to: reward, pass^k, stops, turns, tokens. Keeps counts only."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb

from rollq.trajectory import Trajectory

SUCCESS = 1.0 - 1e-6
"""The reward from which an episode counts as a success (tau_bench/run.py: within 1e-6 of 1)."""


@dataclass(slots=True)
class Summary:
    """Add trajectories, then read."""

    graded: int = 0
    reward: float = 0.0
    """Sum over the graded."""
    turns: int = 0
    sampled_tokens: int = 0
    total_tokens: int = 0
    trajectories: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    tasks: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """(env, split, task) -> graded samples, successes."""

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
            samples, successes = self.tasks.get((job.env, job.split, job.task), (0, 0))
            self.tasks[job.env, job.split, job.task] = samples + 1, successes + (trajectory.reward >= SUCCESS)

    @property
    def reward_mean(self) -> float | None:
        """Over the graded; None without any."""
        return self.reward / self.graded if self.graded else None

    @property
    def turns_mean(self) -> float | None:
        return self.turns / self.trajectories if self.trajectories else None

    def pass_hat_k(self, most: int) -> Mapping[int, float]:
        """pass^k for k from 1 to `most`: the chance that k tries at a task all succeed.

        The mean over tasks of C(c, k) / C(n, k), for c successes in n tries (tau-bench, arXiv 2406.12045, section 4.1);
        a task with fewer than k graded tries says nothing about k.
        """
        found = {}
        for k in range(1, most + 1):
            estimates = [comb(c, k) / comb(n, k) for n, c in self.tasks.values() if n >= k]
            if estimates:
                found[k] = sum(estimates) / len(estimates)
        return found

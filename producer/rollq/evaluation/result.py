"""The result of an evaluation: for each task, what its tries earned and cost. Keeps numbers, not
the trajectories.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollq.evaluation.statistics import SUCCESS, Estimate, estimate, pass_hat
from rollq.job import job_id
from rollq.training.staleness import version_tokens
from rollq.trajectory import Trajectory

TaskKey = tuple[str, str, int]
"""A task's environment, split and number: what makes it the same task in another evaluation."""


class Try(NamedTuple):
    """One graded try at a task."""

    reward: float
    stop: str
    turns: int
    sampled_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The tries at one task, all of them graded."""

    group: str
    env: str
    split: str
    task: int
    tries: Sequence[Try]
    """Tries by sample: try i is the job `run/group/i`."""
    versions: Mapping[str, int]
    """Number of tokens that each weight version sampled, by the engine's names."""

    @property
    def key(self) -> TaskKey:
        return self.env, self.split, self.task

    @property
    def title(self) -> str:
        return f"{self.env}/{self.split}/{self.task}"

    @property
    def reward(self) -> float:
        """Mean reward over the tries."""
        return sum(episode.reward for episode in self.tries) / len(self.tries)

    @property
    def successes(self) -> int:
        return sum(episode.reward >= SUCCESS for episode in self.tries)


def task_result(trajectories: Sequence[Trajectory]) -> TaskResult:
    """The result of a group: its trajectories by sample, all of them graded."""
    job = trajectories[0].job
    return TaskResult(
        group=job.group,
        env=job.env,
        split=job.split,
        task=job.task,
        tries=[_try(t) for t in trajectories],
        versions=dict(version_tokens(trajectories)),
    )


def _try(trajectory: Trajectory) -> Try:
    closed = trajectory.closed
    # The ledger's reader gives graded ones only.
    assert closed is not None and closed.reward is not None
    return Try(
        closed.reward,
        closed.stop.value,
        trajectory.turns,
        trajectory.sampled_tokens,
        len(trajectory.tokens),
    )


class Failure(NamedTuple):
    """A try that did not succeed."""

    job: str
    reward: float
    stop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an evaluation. Every mean is over tasks."""

    run: str
    name: str
    """Name in the run. Empty if the whole run is the evaluation."""
    version: str | None
    """The weight version that it is meant to evaluate. None if it may be any."""
    size: int
    """Tries at each task."""
    tasks: Sequence[TaskResult]
    """Results of the tasks in the order in which they were given."""
    left_out: Sequence[str] = ()
    """Groups of the tasks with a dead try. They have too few tries, so they are in no number."""
    dead: int = 0
    """Tries without a grade."""

    @property
    def complete(self) -> bool:
        return not self.left_out

    @property
    def tries(self) -> list[Try]:
        return [episode for task in self.tasks for episode in task.tries]

    @property
    def reward(self) -> Estimate | None:
        """The mean reward; None without tasks."""
        return estimate([task.reward for task in self.tasks])

    @property
    def pass_hat_k(self) -> dict[int, Estimate]:
        """The chance that k tries at a task all succeed, by k up to `size`."""
        estimates = {k: estimate(self.pass_hat(k)) for k in range(1, self.size + 1)}
        return {k: value for k, value in estimates.items() if value}

    def pass_hat(self, k: int) -> list[float]:
        """pass^k of each task."""
        return [pass_hat(task.successes, len(task.tries), k) for task in self.tasks]

    @property
    def versions(self) -> dict[str, int]:
        """Number of tokens that each weight version sampled."""
        total = Counter[str]()
        for task in self.tasks:
            total.update(task.versions)
        return dict(sorted(total.items()))

    @property
    def other_versions(self) -> dict[str, int]:
        """Number of tokens that other weight versions than `version` sampled. Not empty: the result
        is mixed.
        """
        return {
            name: tokens
            for name, tokens in self.versions.items()
            if self.version not in (None, name)
        }

    @property
    def worst_first(self) -> list[TaskResult]:
        return sorted(self.tasks, key=lambda task: task.reward)

    @property
    def failures(self) -> list[Failure]:
        """The tries that did not succeed: those of the worst task first, and of a task the worst
        try first.
        """
        failures = []
        for task in self.worst_first:
            of_task = []
            for sample, episode in enumerate(task.tries):
                if episode.reward < SUCCESS:
                    job = job_id(self.run, task.group, sample)
                    of_task.append(Failure(job, episode.reward, episode.stop))
            failures += sorted(of_task, key=lambda failure: failure.reward)
        return failures

"""A mixture of tasks: which group is drawn next, by weights that change with the step, while
settled tasks rest.

The sequence of groups follows from the parts, the seed and the solve rates that were known at each
step, and from nothing else. So a producer that is started again draws the same groups.
"""

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from rollq.errors import ContractError
from rollq.job import Job, group_name
from rollq.numbers import is_number, is_whole, whole_number

Weight = float | Mapping[int, float] | Callable[[int], float]
"""A number, a table `{first step: number}`, or a function of the step."""
Rates = Callable[[int], Mapping[str, float]]
"""The mean rewards, by `Job.task_name`, that became known before this step and after the one
before. The same step has the same answer always.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Tasks that share a weight, for example those of an environment."""

    jobs: Sequence[Job]
    """One for each task. Group, sample and, from a task's second group on, the seed are filled in.
    """
    weight: Weight = 1.0
    """Share of the groups, against the weights of the other parts: a number of at least 0, a table
    `{0: 3.0, 100: 1.0}` (from step 100 on it is 1.0), or a function of the step.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, Sequence) or not self.jobs:
            raise ContractError(
                f"a part of a mixture needs a list of at least one Job, not {self.jobs!r:.80}"
            )
        odd = [job for job in self.jobs if not isinstance(job, Job)]
        if odd:
            raise ContractError(f"the tasks of a mixture are Jobs, not {odd[0]!r:.100}")
        if isinstance(self.weight, Mapping):
            if 0 not in self.weight or not all(map(is_whole, self.weight)):
                raise ContractError(
                    f"{self}: the table {self.weight!r:.100} needs whole steps, of which the first "
                    "is 0"
                )
            for step in self.weight:
                self.weight_at(step)

    def __str__(self) -> str:
        return f"the part of {self.jobs[0].env}/{self.jobs[0].split}"

    def weight_at(self, step: int) -> float:
        """The weight at a step. Raises ContractError unless it is one."""
        weight: Any = self.weight
        if isinstance(weight, Mapping):
            steps = sorted(weight)
            weight = weight[steps[bisect_right(steps, step) - 1]]
        elif callable(weight):
            weight = weight(step)
        if not is_number(weight) or weight < 0:
            raise ContractError(
                f"{self}: its weight at step {step} must be a number of at least 0, not {weight!r}"
            )
        return float(weight)


@dataclass(frozen=True, slots=True)
class Rest:
    """Rests tasks whose latest group has a mean reward of `low` or less, or of `high` or more."""

    rates: Rates
    """`Client.solve_rates()`, or a function."""
    steps: int
    """Number of steps for which they rest."""
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        whole_number("the number of steps for which tasks rest", self.steps, at_least=1)
        if not self.low < self.high:
            raise ContractError(
                f"tasks rest at low and below, at high and above: {self.low!r} is not below "
                f"{self.high!r}"
            )

    def has_settled(self, rate: float) -> bool:
        return rate <= self.low or rate >= self.high


@dataclass(frozen=True, slots=True)
class Mixture:
    """The jobs of one group after another, for `Client.submit(mixture, source=...)`.

    A step is `groups_per_step` groups. Parts take turns by their weights (smooth weighted round
    robin), so shares are not left to chance. Each part goes through its tasks in an order of its
    own in each pass, by `seed`, and leaves out those that rest. A part whose tasks all rest has no
    share in that step; when no other has one, nothing rests.
    """

    parts: Sequence[Part]
    groups_per_step: int
    steps: int | None = None
    """Number of steps. None without end."""
    seed: int = 0
    rest: Rest | None = None

    def __post_init__(self) -> None:
        is_list = isinstance(self.parts, Sequence)
        if not is_list or not self.parts or not all(isinstance(one, Part) for one in self.parts):
            raise ContractError(
                f"a mixture needs a list of at least one Part, not {self.parts!r:.80}"
            )
        whole_number("groups_per_step of a mixture", self.groups_per_step, at_least=1)
        whole_number("seed of a mixture", self.seed, at_least=0)
        if self.steps is not None:
            whole_number("steps of a mixture", self.steps, at_least=1)
        self.weights_at(0)

    def weights_at(self, step: int) -> list[float]:
        """One per part. Raises ContractError for a wrong weight, and when all are 0."""
        weights = [part.weight_at(step) for part in self.parts]
        if not any(weights):
            raise ContractError(f"all parts of the mixture have weight 0 at step {step}")
        return weights

    def __iter__(self) -> Iterator[Job]:
        draws = _Draws(self)
        for step in count() if self.steps is None else range(self.steps):
            for job in draws.of_step(step):
                # All samples: a producer holds sample 0 alone back until the next step's first job
                # shows its end.
                yield from (replace(job, sample=sample) for sample in range(job.members))


class _Draws:
    """The groups that a mixture draws, step by step."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._passes = [
            _Pass(part.jobs, f"{mixture.seed}/{index}") for index, part in enumerate(mixture.parts)
        ]
        self._credits = [0.0] * len(self._passes)
        self._epochs: Counter[str] = Counter()
        self._awake_at: dict[str, int] = {}

    def of_step(self, step: int) -> Iterator[Job]:
        """Sample 0 of each group of the step."""
        resting = self._resting(step)
        weights = self._mixture.weights_at(step)
        awake = list(weights)
        for index, tasks in enumerate(self._passes):
            if not tasks.has_awake(resting):
                awake[index] = 0.0
        if not any(awake):
            awake = weights
            resting = set()
        for _ in range(self._mixture.groups_per_step):
            yield self._in_next_group(self._next_pass(awake).draw(resting))

    def _resting(self, step: int) -> set[str]:
        rest = self._mixture.rest
        if rest:
            for task, rate in rest.rates(step).items():
                if rest.has_settled(rate):
                    self._awake_at[task] = step + rest.steps
        return {task for task, awake_at in self._awake_at.items() if awake_at > step}

    def _next_pass(self, weights: Sequence[float]) -> "_Pass":
        """The part whose turn it is. One that has no share now keeps its credit for later."""
        total = math.fsum(weights)
        for index, weight in enumerate(weights):
            self._credits[index] += weight / total
        with_share = [index for index, weight in enumerate(weights) if weight]
        chosen = max(with_share, key=self._credits.__getitem__)
        self._credits[chosen] -= 1.0
        return self._passes[chosen]

    def _in_next_group(self, job: Job) -> Job:
        """The job in the next group of its task, named as `rollq submit` names those of an
        epoch.
        """
        epoch = self._epochs[job.task_name]
        self._epochs[job.task_name] += 1
        group = group_name(job.env, job.split, job.task, epoch)
        return replace(job, group=group, sample=0, seed=job.seed + epoch)


class _Pass:
    """The tasks of one part, again and again, each time in another order."""

    def __init__(self, jobs: Sequence[Job], seed: str) -> None:
        self._jobs = [(job.task_name, job) for job in jobs]
        self._seed = seed
        self._number = 0
        self._left: list[int] = []

    def has_awake(self, resting: set[str]) -> bool:
        return any(name not in resting for name, _ in self._jobs)

    def draw(self, resting: set[str]) -> Job:
        while True:
            if not self._left:
                # Python promises the numbers of random() for a seed, and no order of shuffle().
                numbers = random.Random(f"{self._seed}/{self._number}")
                self._left = sorted(range(len(self._jobs)), key=lambda _: numbers.random())
                self._number += 1
            name, job = self._jobs[self._left.pop()]
            if name not in resting:
                return job

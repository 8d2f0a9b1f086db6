"""Functions of the trainer's process: a filter says which groups a batch keeps, a reward replaces
the environment's.

Each is given as a callable or as an import path, `module:function`. What one of them raises or
returns wrongly becomes a FunctionError that names the function, and the group or the job. Standard
library only.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollq.batch import Group
from rollq.errors import FunctionError, SettingsError
from rollq.events import Prompt
from rollq.training.advantages import grpo
from rollq.trajectory import Trajectory

Where = str | Callable[[Group], bool]
"""A filter: the name of a built-in one, an import path, or a callable."""
Reward = str | Callable[[Trajectory], float]
"""A reward function: an import path or a callable."""
LONGEST_NAME = 64
"""Number of characters of a filter's name, from its end, under which groups are counted."""


def load(path: str) -> Callable[..., Any]:
    """The function at an import path, `module:function`. Raises SettingsError for a path that names
    none.
    """
    module, colon, name = path.partition(":")
    if not (colon and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))):
        raise SettingsError(f"{path!r} is not an import path of a function: write module:function")
    try:
        target: Any = importlib.import_module(module)
    except (Exception, SystemExit) as e:  # a module may raise anything while it is imported
        if isinstance(e, ModuleNotFoundError) and e.name and f"{module}.".startswith(f"{e.name}."):
            hint = f"there is no module {e.name}: is its folder on PYTHONPATH?"
        else:
            hint = f"importing {module} failed: {type(e).__name__}: {e}"
        raise SettingsError(f"{path}: {hint}") from e
    for part in name.split("."):
        if not hasattr(target, part):
            raise SettingsError(f"{path}: {module} has no {name}")
        target = getattr(target, part)
    if not callable(target):
        raise SettingsError(f"{path}: {name} is a {type(target).__name__}, not a function")
    return target  # type: ignore[no-any-return]


def unequal_rewards(group: Group) -> bool:
    """True if the rewards differ by more than rounding: dynamic sampling (DAPO, arXiv 2503.14476,
    section 3.2). Where the episode has several agents, those of one that is trained are enough.
    """
    trained = {
        event.model
        for trajectory in group.trajectories
        for event in trajectory.events
        if isinstance(event, Prompt)
    }
    return any(any(grpo(group.rewards_of(model))) for model in trained)


FILTERS: Mapping[str, Callable[[Group], bool]] = {"unequal_rewards": unequal_rewards}
"""The built-in filters."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of groups, and the name under which `stats()["skips"]` counts what it
    does not keep.
    """

    name: str
    function: Callable[[Group], bool]

    @classmethod
    def of(cls, where: Where) -> "Filter":
        """Raises SettingsError when it names no function."""
        if isinstance(where, str) and ":" not in where:
            if where not in FILTERS:
                raise SettingsError(
                    f"where {where!r} is not a filter: write {', '.join(FILTERS)}, or "
                    "module:function"
                )
            return cls(where, FILTERS[where])
        return cls(_name(where)[-LONGEST_NAME:], _callable(where, "where"))

    def keeps(self, group: Group) -> bool:
        """Raises FunctionError when the filter raises, or returns neither True nor False."""
        where = f"group {group.trajectories[0].job.run}/{group.id}: the filter {self.name}"
        try:
            verdict = self.function(group)
            if verdict is None or verdict not in (True, False):
                raise TypeError(f"it returned {verdict!r:.80}, not True or False")
        except (Exception, SystemExit) as e:
            raise FunctionError(
                f"{where}: {type(e).__name__}: {e}. The batch stays held: ask for it again"
            ) from e
        return bool(verdict)


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A reward function of trajectories."""

    name: str
    function: Callable[[Trajectory], float]

    @classmethod
    def of(cls, reward: Reward) -> "RewardFunction":
        """Raises SettingsError when it names no function."""
        return cls(_name(reward), _callable(reward, "reward"))

    def reward(self, trajectory: Trajectory) -> float:
        """Raises FunctionError when the function raises, or returns no finite number."""
        where = f"job {trajectory.job.id}: the reward function {self.name}"
        try:
            reward: Any = self.function(trajectory)
            is_number = reward is not None and not isinstance(reward, str | bytes)
            value = float(reward) if is_number else math.nan
            if not math.isfinite(value):
                raise ValueError(f"it returned {reward!r:.80}, not a finite number")
        except (Exception, SystemExit) as e:
            raise FunctionError(
                f"{where}: {type(e).__name__}: {e}. The batch stays held: ask for it again"
            ) from e
        return value

    def apply(self, group: Group) -> Group:
        """The group with these rewards."""
        return replace(group, scores=[self.reward(trajectory) for trajectory in group.trajectories])


def _callable(function: object, what: str) -> Callable[..., Any]:
    if isinstance(function, str):
        return load(function)
    if not callable(function):
        raise SettingsError(
            f"{what} is a function or an import path, module:function, not {function!r:.80}"
        )
    return function


def _name(function: object) -> str:
    return (
        function
        if isinstance(function, str)
        else getattr(function, "__qualname__", type(function).__name__)
    )

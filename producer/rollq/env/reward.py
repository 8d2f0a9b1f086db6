"""The reward function that a job names."""

from collections.abc import Callable

from rollq.env.environment import Grade
from rollq.trajectory import Trajectory

RewardFunction = Callable[[Trajectory, Grade], "float | Grade"]
"""Grades an episode after its environment. The trajectory has every event but the closing one; an
episode that the environment did not end has a grade of 0.0. Raises RewardFailure; any other
exception counts as one.
"""

"""Checks the results of environments and reward functions where they enter, and ends an episode."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace

from rollq.env import Environment, Grade, Observation, RewardFunction
from rollq.errors import EnvironmentFailure, RewardFailure
from rollq.events import Closed, Stop
from rollq.job import Json
from rollq.numbers import is_number
from rollq.trajectory import AGENT_REWARDS, Trajectory
from rollq_worker.failures import errors_become


def check_observation(observation: Observation) -> None:
    """Raises TypeError for a value that an environment may not return from `step`. Images are
    checked where they are shown.
    """
    check_text("observation", observation.text)
    if observation.reward is not None:
        _check_reward(observation.reward)


def check_text(what: str, text: object) -> None:
    """Raises TypeError for another value than a string."""
    if not isinstance(text, str):
        raise TypeError(f"the {what} is a {type(text).__name__}, not a string")


def close(environment: Environment, stop: Stop, *, unfinished: str) -> Closed:
    """The end of an episode, with the environment's grade. One that is `unfinished`, and why, gets
    0, as in tau-bench.
    """
    grade = Grade(0.0)
    info: Mapping[str, Json] = {"unfinished": unfinished}
    if not unfinished:
        with errors_become(EnvironmentFailure, "environment.grade"):
            grade = environment.grade()
            if not isinstance(grade, Grade):
                raise TypeError(f"grade() returns a {type(grade).__name__}, not Grade")
            _check_reward(grade.reward)
            info = _checked_info(grade)
    return Closed(stop=stop, reward=float(grade.reward), info=info, at=time.time())


def with_end(played: Trajectory, closed: Closed, reward: RewardFunction | None) -> Trajectory:
    """The trajectory with its end, on whose grade the reward function has the last word. Raises
    RewardFailure.
    """
    if reward is not None:
        closed = _rewarded(played, closed, reward)
    models = played.job.models
    unknown = {*closed.info.get(AGENT_REWARDS, ())} - {*models} if models else ()
    if unknown:
        failure = EnvironmentFailure if reward is None else RewardFailure
        raise failure(
            f"the grade has a reward for {', '.join(sorted(unknown))}, and the job's models are "
            f"{', '.join(models)}"
        )
    return replace(played, events=(*played.events, closed))


def _rewarded(played: Trajectory, closed: Closed, reward: RewardFunction) -> Closed:
    """The end with the function's grade. Its info also has the environment's, as `env_reward`."""
    before = Grade(closed.reward or 0.0, closed.info, closed.info.get(AGENT_REWARDS, {}))
    with errors_become(RewardFailure, f"the reward {played.job.reward!r}"):
        grade = reward(played, before)
        if not isinstance(grade, Grade):
            grade = Grade(grade)
        _check_reward(grade.reward)
        info = {**before.info, **_checked_info(grade), "env_reward": before.reward}
    return replace(closed, reward=float(grade.reward), info=info)


def _checked_info(grade: Grade) -> dict[str, Json]:
    """The grade's info as the wire and an exported file take it, with the rewards of single
    agents.
    """
    info = dict(grade.info)
    rewards = grade.rewards or info.get(AGENT_REWARDS)
    if rewards:
        if not isinstance(rewards, Mapping):
            raise TypeError(f"Grade.info[{AGENT_REWARDS!r}] is {rewards!r:.80}, not a mapping")
        for reward in rewards.values():
            _check_reward(reward)
        info[AGENT_REWARDS] = {str(name): float(reward) for name, reward in rewards.items()}
    for key, value in info.items():
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as e:
            raise TypeError(f"Grade.info[{key!r}] is not JSON: {e}") from e
    return info


def _check_reward(reward: object) -> None:
    if not is_number(reward):
        raise TypeError(f"the reward is {reward!r}, not a finite int or float")

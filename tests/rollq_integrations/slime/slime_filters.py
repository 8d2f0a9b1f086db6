"""Filters as slime's users write them: f(args, samples) of one group's samples."""

from types import SimpleNamespace
from typing import Any


def rewards_differ(args: Any, samples: list[Any], **_: Any) -> Any:
    rewards = {sample.get_reward_value(args) for sample in samples}
    keep = len(rewards) > 1
    return SimpleNamespace(
        keep=keep,
        reason=None if keep else f"zero_std_{rewards.pop()}",
        keep_when_insufficient=False,
    )


def rewards_differ_if_there_are_more(args: Any, samples: list[Any], **_: Any) -> Any:
    verdict = rewards_differ(args, samples)
    verdict.keep_when_insufficient = True
    return verdict


def plain_bool(args: Any, samples: list[Any]) -> bool:
    return samples[0].reward > 0


def drop_the_losers(args: Any, groups: list[Any]) -> None:
    """A filter of samples: they stay, and are not trained."""
    for group in groups:
        for sample in group:
            sample.remove_sample = sample.reward == 0.0

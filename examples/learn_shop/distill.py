"""The tiny policy learns from a teacher in place of rewards: on-policy distillation, beside GRPO
and two runs with something wrong.

    make learn ARGS=--teacher

The teacher has learned from demonstrations without mistakes. GRPO's numbers are those of `make
learn` at a staleness of 1; without them, that run is made first. All runs begin with the same
policy and play the same tasks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.learn_shop.courses import Say, vocabulary_of
from examples.learn_shop.figure import draw
from examples.learn_shop.policy import Rows, make, save
from examples.learn_shop.train import CLIP, Change, Options, unchanged
from rollq_worker.tokens.tokenizer import BUNDLED

TEACHER = "teacher"
"""Name of the teacher in the jobs, and of its model in the worker's settings."""
STEPS, RATE = 30, 1.5e-3
"""Training steps of a distillation, and their learning rate. Each token has its own advantage, so
the rate may be higher than with rewards.
"""
LARGEST_ADVANTAGE = 1.0
"""Largest advantage of a token, in nats. Without it, a few tokens that the teacher would never
write can make up the whole gradient, whose norm is bounded.
"""
GOAL = 0.8
"""Reward on held-out tasks that the runs are compared by."""


def distillation_loss(rows: Rows, logprobs: Tensor) -> Tensor:
    """PPO's clipped objective of each sampled token, with the teacher's logprob less the policy's
    as advantage, within bounds: without them, its mean is the reverse KL divergence, negative
    (arXiv 2306.13649).
    """
    advantages = (rows.teacher_logprobs[TEACHER] - rows.logprobs)[rows.mask]
    advantages = advantages.clamp(-LARGEST_ADVANTAGE, LARGEST_ADVANTAGE)
    ratio = torch.exp(logprobs - rows.logprobs)[rows.mask]
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)


def shift_scores(rows: Rows) -> Rows:
    """Each token has the teacher's logprob of the token before it."""
    scores = rows.teacher_logprobs[TEACHER].roll(1, dims=1)
    return replace(rows, teacher_logprobs={TEACHER: scores})


@dataclass(frozen=True, kw_only=True)
class Distillation:
    title: str
    folder: str
    teacher: Path
    change: Change = unchanged


def distil(
    run: Callable[..., list[dict[str, Any]]],
    start: Path,
    teacher: Path,
    out: Path,
    options: Options,
    say: Say,
    grpo: list[dict[str, Any]],
    **engines: Any,
) -> None:
    """Distils the teacher, a wrong one and shifted scores, and draws them beside GRPO."""
    wrong = out / "wrong-teacher"
    save(make(vocabulary_of(BUNDLED), seed=options.seed + 1), wrong)
    histories = {"GRPO, staleness 1": grpo}
    for each in (
        Distillation(title="a teacher that knows the desk", folder="distil", teacher=teacher),
        Distillation(title="a teacher that has learned nothing", folder="wrong", teacher=wrong),
        Distillation(
            title="the teacher's scores shifted by one",
            folder="shifted",
            teacher=teacher,
            change=shift_scores,
        ),
    ):
        say(f"distillation: {each.title}")
        histories[each.title] = run(
            start,
            out / each.folder,
            replace(options, steps=STEPS, rate=RATE, staleness=1),
            say,
            teacher=each.teacher,
            change=each.change,
            loss_of=distillation_loss,
            **engines,
        )
    picture = draw(histories, out / "distil.png")
    for title, history in histories.items():
        say(f"{title}: {summary(history, options)}")
    say(f"figure: {picture}")


def summary(history: list[Mapping[str, Any]], options: Options) -> str:
    """The rewards on held-out tasks, and the episodes up to the first of at least GOAL."""
    measured = [(step["step"], step["held_out"]) for step in history if "held_out" in step]
    rewards = f"{measured[0][1]:.2f} -> {measured[-1][1]:.2f}"
    episodes = options.groups * options.size
    reached = next((step for step, reward in measured if reward >= GOAL), None)
    if reached is None:
        return f"{rewards}; {GOAL} was not reached"
    return f"{rewards}; {GOAL} after {reached * episodes} episodes"

"""The policy before it learns from rewards: taught to write as the episodes of a
demonstration do.
"""

import random
from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedModel

from examples.learn_shop.policy import Rows, backward
from rollq.training.arrays import Row, pad
from rollq.trajectory import Trajectory

ROWS = 32


def warm_start(
    model: PreTrainedModel,
    episodes: Sequence[Trajectory],
    rng: random.Random,
    say: Callable[[str], None],
    *,
    steps: int,
    rate: float,
    at_once: int,
    bf16: bool,
) -> None:
    """Trains the model on batches of the episodes, with a rate that falls to nothing. No steps: it
    stays as it is.
    """
    if not steps:
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    reward = fmean(trajectory.reward or 0.0 for trajectory in episodes)
    say(f"warm start: {len(episodes)} demonstrations, mean reward {reward:.2f}")
    for step in range(steps):
        rows = pad([_row(trajectory) for trajectory in rng.sample(episodes, ROWS)]).torch()
        optimizer.zero_grad()
        numbers = backward(model, rows, likelihood_loss, at_once=at_once, bf16=bf16)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            say(f"warm start: step {step + 1} of {steps}, loss {numbers['loss']:.3f} per token")


def likelihood_loss(rows: Rows, logprobs: Tensor) -> Tensor:
    """Loss of each sampled token."""
    return -logprobs[rows.mask]


def _row(trajectory: Trajectory) -> Row:
    segment = trajectory.segments()[0]
    return Row(
        segment=segment, job_id=trajectory.job.id, trajectory=0, group=0, reward=0.0, advantage=0.0
    )

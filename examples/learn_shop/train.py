"""The trainer: GRPO with a clipped importance ratio, on batches from rollq.

The loop knows nothing of workers, engines or episodes. It submits tasks in one thread, takes
batches in the other, and tells the fleet and the run about each new policy.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from examples.learn_shop.policy import CONTEXT, Loss, Rows, backward, save
from rollq import Batch, Budget, Client, Job
from rollq.client.evaluation import Evaluation
from rollq.weights import Fleet
from rollq_worker.environments import domain

WARM_UP, CLIP = 5, 0.2
WAIT_S = 1200.0
"""Longest wait for a batch or an evaluation. A pretrained policy plays it in many minutes on two
cores.
"""

RUN = "learn"
Change = Callable[[Rows], Rows]


def unchanged(rows: Rows) -> Rows:
    return rows


@dataclass(frozen=True, kw_only=True)
class Options:
    env: str = "shop:desk"
    budget: Budget = field(default=Budget(max_turns=4, max_new_tokens=64))
    context: int = CONTEXT
    """Tokens of the engine's context."""
    rate: float = 5e-4
    at_once: int = 128
    """Rows of one backward pass."""
    bf16: bool = False
    """True if trainer and engine compute in bfloat16. The trainer's weights are float32."""
    steps: int = 50
    staleness: int = 0
    groups: int = 16
    """Groups of a batch."""
    size: int = 8
    """Samples of a group."""
    held_out: int = 96
    """Tasks of an evaluation."""
    evaluate_every: int = 5
    seed: int = 0
    slots: int = 64
    """Episodes that the worker plays at once."""


def policy_loss(rows: Rows, logprobs: Tensor) -> Tensor:
    """PPO's clipped objective (arXiv 1707.06347, equation 7) with the group's advantages, of each
    sampled token.
    """
    ratio = torch.exp(logprobs - rows.logprobs)[rows.mask]
    advantages = rows.advantages[:, None].expand(rows.mask.shape)[rows.mask]
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)


def learn(
    client: Client,
    fleet: Fleet,
    model: PreTrainedModel,
    start: Path,
    folder: Path,
    options: Options,
    change: Change = unchanged,
    loss_of: Loss = policy_loss,
    teachers: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """Trains the model of the folder `start`, and yields the numbers of each step. `teachers` are
    those of the training jobs.

    `change` and `loss_of` do something wrong in the negative controls."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.0)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARM_UP)
    client.limit_staleness(groups_per_batch=options.groups, max_staleness=options.staleness)

    def publish(step: int) -> None:
        """Has the engines serve the policy of this step, then tells the run."""
        fleet.update(save(model, folder / f"weights-{step % 2}", start), version=str(step))
        client.publish(step)

    publish(0)
    jobs = tasks(options, "train", options.steps * options.groups, teachers)
    threading.Thread(target=client.submit, args=(jobs,), daemon=True).start()
    batches = client.batches(groups=options.groups, timeout=WAIT_S)
    for step in range(options.steps + 1):
        began = time.monotonic()
        due = step % options.evaluate_every == 0 or step == options.steps
        evaluation = evaluate(client, options) if due else None
        if step == options.steps:
            yield {"step": step, **held_out(evaluation)}
            return
        batch = next(batches)
        waited = time.monotonic()
        rows = batch.arrays().torch()
        optimizer.zero_grad()
        numbers: dict[str, Any] = backward(
            model, change(rows), loss_of, at_once=options.at_once, bf16=options.bf16
        )
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        trained = time.monotonic()
        numbers |= held_out(evaluation)  # before the weights change
        publish(step + 1)
        batch.ack()
        ended = time.monotonic()
        seconds = {"wait_s": waited - began, "train_s": trained - waited, "sync_s": ended - trained}
        yield {"step": step, **facts(batch, rows, ended - began), **numbers, **seconds}


def tasks(
    options: Options,
    name: str,
    groups: int,
    teachers: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Job]:
    """Groups of training tasks, drawn at random."""
    rng = random.Random(options.seed)
    known = domain(options.env).splits()["train"]
    for number in range(groups):
        yield Job(
            env=options.env,
            task=rng.randrange(known),
            group=f"{name}-{number}",
            size=options.size,
            budget=options.budget,
            seed=options.seed + number * options.size,
            teachers=teachers,
        )


def evaluate(client: Client, options: Options) -> Evaluation:
    """Begins an evaluation of the policy that is published now."""
    jobs = [
        Job(env=options.env, split="test", task=task, budget=options.budget)
        for task in range(options.held_out)
    ]
    return client.evaluate(jobs, k=1)


def held_out(evaluation: Evaluation | None) -> dict[str, Any]:
    """Mean reward of an evaluation."""
    if evaluation is None:
        return {}
    return {"held_out": fmean(task.reward for task in evaluation.result(timeout=WAIT_S).tasks)}


def facts(batch: Batch, rows: Rows, seconds: float) -> dict[str, Any]:
    tokens = int(rows.mask.sum())
    return {
        "reward": sum(batch.rewards) / len(batch.rewards),
        "staleness_max": batch.staleness.max,
        "staleness_mean": batch.staleness.mean,
        "sampled_tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "groups_with_signal": sum(len(set(group.rewards)) > 1 for group in batch.groups),
    }

"""The trainer: GRPO with a clipped importance ratio, on batches from rollq.

The loop knows nothing of workers, engines or episodes. It submits tasks in one thread, takes batches in the other, and
tells the fleet and the run about each new policy.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from examples.learn_shop.policy import logprobs_of, save
from rollq import Batch, Budget, Client, Job
from rollq.client.evaluation import Evaluation
from rollq.training.arrays import PaddedArrays
from rollq.weights import Fleet
from rollq_worker.environments.shop.desk import KINDS, SPLITS

ENV = "shop:desk"
BUDGET = Budget(max_turns=4, max_new_tokens=64)
RATE, WARM_UP, CLIP = 5e-4, 5, 0.2
WAIT_S = 300.0

Rows = PaddedArrays[Tensor]
Change = Callable[[Rows, PreTrainedModel], Rows]


@dataclass(frozen=True, kw_only=True)
class Options:
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


def learn(
    client: Client, fleet: Fleet, model: PreTrainedModel, folder: Path, options: Options, change: Change | None = None
) -> Iterator[dict[str, Any]]:
    """Train, and yield the numbers of each step. `change` falsifies the rows of a batch, for the negative controls."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARM_UP)
    client.limit_staleness(groups_per_batch=options.groups, max_staleness=options.staleness)
    publish(client, fleet, model, folder, 0)
    threading.Thread(target=client.submit, args=(tasks(options),), daemon=True).start()
    batches = client.batches(groups=options.groups, timeout=WAIT_S)
    for step in range(options.steps + 1):
        began = time.monotonic()
        due = step % options.evaluate_every == 0 or step == options.steps
        evaluation = evaluate(client, options.held_out) if due else None
        if step == options.steps:
            yield {"step": step, **held_out(evaluation)}
            return
        batch = next(batches)
        waited = time.monotonic()
        rows = batch.arrays().torch()
        loss, numbers = policy_loss(model, change(rows, model) if change else rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        trained = time.monotonic()
        numbers |= held_out(evaluation)  # before the weights change
        publish(client, fleet, model, folder, step + 1)
        batch.ack()
        ended = time.monotonic()
        seconds = {"wait_s": waited - began, "train_s": trained - waited, "sync_s": ended - trained}
        yield {"step": step, **facts(batch, rows, ended - began), **numbers, **seconds}


def policy_loss(model: PreTrainedModel, rows: Rows) -> tuple[Tensor, dict[str, float]]:
    """PPO's clipped objective (arXiv 1707.06347, equation 7) with the group's advantages, mean over sampled tokens."""
    logprobs, entropy = logprobs_of(model, rows.tokens, rows.mask)
    ratio = torch.exp(logprobs - rows.logprobs)[rows.mask]
    advantages = rows.advantages[:, None].expand(rows.mask.shape)[rows.mask]
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    distance = (ratio.detach().log().abs()).mean().item()
    return loss, {"entropy": entropy[rows.mask].mean().item(), "mean_abs_log_ratio": distance}


def publish(client: Client, fleet: Fleet, model: PreTrainedModel, folder: Path, step: int) -> None:
    """Have the engines serve the policy of this step, then tell the run."""
    fleet.update(save(model, folder / f"weights-{step % 2}"), version=str(step))
    client.publish(step)


def tasks(options: Options) -> Iterator[Job]:
    """Tasks for all batches, drawn at random."""
    rng = random.Random(options.seed)
    for number in range(options.steps * options.groups):
        task, seed = rng.randrange(SPLITS["train"]), options.seed + number * options.size
        yield Job(env=ENV, task=task, group=f"train-{number}", size=options.size, budget=BUDGET, seed=seed)


def evaluate(client: Client, tasks: int) -> Evaluation:
    """Begin an evaluation of the policy that is published now."""
    return client.evaluate([Job(env=ENV, split="test", task=task, budget=BUDGET) for task in range(tasks)], k=1)


def held_out(evaluation: Evaluation | None) -> dict[str, Any]:
    """Its mean reward, in all and by kind of request."""
    if evaluation is None:
        return {}
    tasks = evaluation.result(timeout=WAIT_S).tasks
    kinds = [fmean(task.reward for task in tasks if task.task % KINDS == kind) for kind in range(KINDS)]
    return {"held_out": fmean(task.reward for task in tasks), "held_out_kinds": kinds}


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

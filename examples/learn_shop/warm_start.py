"""The policy before it learns: taught by a clerk who knows all forms and mostly mistakes one request for another."""

import random
from array import array
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from examples.learn_shop.policy import logprobs_of, make
from rollq import Job
from rollq.env import Action
from rollq.events import Finish, VersionSpan
from rollq.training.arrays import Row, pad
from rollq.trajectory import Trajectory
from rollq_worker.environments import domain
from rollq_worker.environments.shop.desk import KINDS
from rollq_worker.episode.loop import play
from rollq_worker.fakes import FakeJournal
from rollq_worker.protocols import Generated, SampleRequest
from rollq_worker.replay_engine.policy.ground_truth import turn_text
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.users.scripted import ScriptedUser

RIGHT = 0.3
"""How often the clerk does what the customer asked for."""
MISTAKEN = 3
"""Else request k is taken for request k + MISTAKEN, which never earns the reward."""
ROWS = 32
RATE = 1e-2


class Clerk:
    """An engine that says fixed moves."""

    def __init__(self, tokenizer: Tokenizer, moves: Sequence[Action]) -> None:
        end = tokenizer.added_tokens["<|im_end|>"]
        self._turns = iter([tokenizer.encode(turn_text(move)) + array("I", [end]) for move in moves])

    def room(self, prompt: int) -> int:
        return 1 << 20

    def generate(self, request: SampleRequest) -> Generated:
        turn = next(self._turns)
        versions = [VersionSpan("clerk", 0, len(turn))]
        return Generated(ids=turn, logprobs=array("f", [0.0] * len(turn)), versions=versions, finish=Finish.STOP)


def demonstration(tokenizer: Tokenizer, rng: random.Random) -> Trajectory:
    """One episode of a random task, played by the clerk."""
    desk = domain("shop:desk")
    index = rng.randrange(desk.splits()["train"])
    kind = index % KINDS if rng.random() < RIGHT else (index + MISTAKEN) % KINDS
    meant = index - index % KINDS + kind
    task, environment = desk.task("train", index), desk.open("train", index, {})
    return play(
        Job(env="shop:desk", task=index, run="clerk", group=f"{index}"),
        engine=Clerk(tokenizer, [*desk.task("train", meant).moves]),
        renderer=ChatRenderer(tokenizer, environment.tools),
        environment=environment,
        user=ScriptedUser(task.opening, task.replies),
        journal=FakeJournal(),
    )


def warm_start(tokenizer: Tokenizer, steps: int, seed: int, say: Callable[[str], None]) -> PreTrainedModel:
    """A model that writes as the clerk does."""
    rng, model = random.Random(seed), make(tokenizer, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    episodes = [demonstration(tokenizer, rng) for _ in range(min(steps * ROWS, 1500))]
    say(f"warm start: {len(episodes)} episodes of the clerk, mean reward {mean_reward(episodes):.2f}")
    for step in range(steps):
        chosen = rng.sample(episodes, ROWS)
        rows = pad([_row(trajectory) for trajectory in chosen]).torch()
        logprobs, _ = logprobs_of(model, rows.tokens, rows.mask)
        loss = -logprobs[rows.mask].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            say(f"warm start: step {step + 1} of {steps}, loss {loss.item():.3f} per token")
    return model


def mean_reward(episodes: Sequence[Trajectory]) -> float:
    return sum(trajectory.reward or 0.0 for trajectory in episodes) / len(episodes)


def _row(trajectory: Trajectory) -> Row:
    segment = trajectory.segments()[0]
    return Row(segment=segment, job_id=trajectory.job.id, trajectory=0, group=0, reward=0.0, advantage=0.0)

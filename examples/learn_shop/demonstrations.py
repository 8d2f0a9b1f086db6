"""Episodes to begin with: played by somebody who knows all forms, and often does the wrong thing.

At the desk it is a clerk who mostly mistakes one request for another. In the shop it is the replay engine's policy,
with its mistakes.
"""

import random
from array import array
from collections.abc import Sequence
from functools import cache

from rollq import Job
from rollq.env import Action
from rollq.events import Finish, VersionSpan
from rollq.trajectory import Trajectory
from rollq_worker.environments import domain
from rollq_worker.environments.shop.desk import KINDS
from rollq_worker.episode.loop import play
from rollq_worker.fakes import FakeJournal
from rollq_worker.protocols import Engine, Generated, SampleRequest
from rollq_worker.replay_engine.policy.ground_truth import END, GroundTruth, turn_text
from rollq_worker.replay_engine.policy.task_progress import TaskIndex
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.users.scripted import ScriptedUser

RIGHT = 0.3
"""How often the clerk does what the customer asked for."""
MISTAKEN = 3
"""Else request k is taken for request k + MISTAKEN, which never earns the reward."""
MISTAKES = 0.9
"""How many of the shop's episodes have at least one mistake. A third of the episodes earns the reward all the same."""


class Clerk:
    """An engine that says fixed moves."""

    def __init__(self, tokenizer: Tokenizer, moves: Sequence[Action]) -> None:
        end = tokenizer.added_tokens[END]
        self._turns = iter([tokenizer.encode(turn_text(move)) + array("I", [end]) for move in moves])

    def room(self, prompt: int) -> int:
        return 1 << 20

    def generate(self, request: SampleRequest) -> Generated:
        return _said(next(self._turns))


class Erring:
    """An engine that says the next move of the ground truth, or a mistake."""

    def __init__(self, policy: GroundTruth, rng: random.Random) -> None:
        self._policy, self._rng = policy, rng

    def room(self, prompt: int) -> int:
        return 1 << 20

    def generate(self, request: SampleRequest) -> Generated:
        return _said(self._policy.next_turn(request.ids, self._rng).ids)


def _said(turn: "array[int]") -> Generated:
    versions = [VersionSpan("demonstration", 0, len(turn))]
    return Generated(ids=turn, logprobs=array("f", [0.0] * len(turn)), versions=versions, finish=Finish.STOP)


def demonstration(env: str, tokenizer: Tokenizer, rng: random.Random) -> Trajectory:
    """One episode of a random training task of `shop` or `shop:desk`."""
    tasks = domain(env)
    index = rng.randrange(tasks.splits()["train"])
    task, environment = tasks.task("train", index), tasks.open("train", index, {})
    return play(
        Job(env=env, task=index, run="demonstration", group=f"{index}"),
        engine=_clerk(tokenizer, index, rng) if env == "shop:desk" else Erring(_ground_truth(env, tokenizer), rng),
        renderer=ChatRenderer(tokenizer, environment.tools),
        environment=environment,
        user=ScriptedUser(task.opening, task.replies),
        journal=FakeJournal(),
    )


def _clerk(tokenizer: Tokenizer, index: int, rng: random.Random) -> Engine:
    kind = index % KINDS if rng.random() < RIGHT else (index + MISTAKEN) % KINDS
    meant = index - index % KINDS + kind
    return Clerk(tokenizer, [*domain("shop:desk").task("train", meant).moves])


@cache
def _ground_truth(env: str, tokenizer: Tokenizer) -> GroundTruth:
    return GroundTruth(tokenizer, TaskIndex.load(env), MISTAKES)

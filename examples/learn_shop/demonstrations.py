"""Episodes to begin with: played by somebody who knows all forms, and often does the wrong thing.

At the desk it is a clerk who mostly mistakes one request for another. In the shop it is the replay
engine's policy, with its mistakes.
"""

import random
from array import array
from collections.abc import Callable
from functools import cache

from rollq import Job
from rollq.events import Finish, VersionSpan
from rollq.trajectory import Trajectory
from rollq_worker.environments import domain
from rollq_worker.environments.shop.desk import KINDS, REQUESTS
from rollq_worker.episode.loop import play
from rollq_worker.fakes import FakeJournal
from rollq_worker.protocols import Generated, SampleRequest
from rollq_worker.replay_engine.policy.ground_truth import END, GroundTruth, turn_text
from rollq_worker.replay_engine.policy.task_progress import TaskIndex
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.users.scripted import ScriptedUser

RIGHT = 0.3
"""Share of requests that the clerk of a warm start fulfils."""
CALLS = sum(call is not None for _, call in REQUESTS)
"""Number of requests that take a call. They are the first ones."""
MISTAKEN = 2
"""Else it makes the call of request (k + MISTAKEN) % CALLS for request k, which never earns the
reward.
"""
MISTAKES = 0.9
"""Share of the shop's episodes with at least one mistake. A third of the episodes earns the reward
all the same.
"""


class Player:
    """An engine that says what a function of the prompt's ids gives, stop token included."""

    def __init__(self, next_turn: "Callable[[array[int]], array[int]]") -> None:
        self._next_turn = next_turn

    def room(self, prompt: int) -> int:
        return 1 << 20

    def generate(self, request: SampleRequest) -> Generated:
        turn = self._next_turn(request.ids)
        versions = [VersionSpan("demonstration", 0, len(turn))]
        return Generated(
            ids=turn, logprobs=array("f", [0.0] * len(turn)), versions=versions, finish=Finish.STOP
        )


def demonstration(
    env: str, tokenizer: Tokenizer, rng: random.Random, right: float = RIGHT
) -> Trajectory:
    """One episode of a random training task of `shop` or `shop:desk`. `right`: how often the clerk
    of the desk does what the customer asked for.
    """
    tasks = domain(env)
    index = rng.randrange(tasks.splits()["train"])
    task = tasks.task("train", index)
    environment = tasks.open("train", index, {})
    return play(
        Job(env=env, task=index, run="demonstration", group=f"{index}"),
        engine=_clerk(tokenizer, index, rng, right)
        if env == "shop:desk"
        else _erring(env, tokenizer, rng),
        renderer=ChatRenderer(tokenizer, environment.tools),
        environment=environment,
        user=ScriptedUser(task.opening, task.replies),
        journal=FakeJournal(),
    )


def _clerk(tokenizer: Tokenizer, index: int, rng: random.Random, right: float) -> Player:
    kind = index % KINDS
    played = kind if rng.random() < right else (kind + MISTAKEN) % CALLS
    moves = domain("shop:desk").task("train", index - kind + played).moves
    end = array("I", [tokenizer.added_tokens[END]])
    turns = iter([tokenizer.encode(turn_text(move)) + end for move in moves])
    return Player(lambda ids: next(turns))


def _erring(env: str, tokenizer: Tokenizer, rng: random.Random) -> Player:
    policy = _ground_truth(env, tokenizer)
    return Player(lambda ids: policy.next_turn(ids, rng).ids)


@cache
def _ground_truth(env: str, tokenizer: Tokenizer) -> GroundTruth:
    return GroundTruth(tokenizer, TaskIndex.load(env), MISTAKES)

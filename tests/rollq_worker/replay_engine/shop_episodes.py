"""Episodes of the shop for the tests of the replay engine."""

from array import array
from typing import Any

from rollq.env import Task
from rollq.job import Job
from rollq.trajectory import Trajectory
from rollq_worker.context import context_factory
from rollq_worker.environments import domain
from rollq_worker.episode.loop import play
from rollq_worker.fakes import FakeJournal
from rollq_worker.protocols import Context
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import load_tokenizer
from rollq_worker.users.scripted import ScriptedUser

SPLIT = "dev"
TOKENIZER = load_tokenizer()
END = TOKENIZER.added_tokens["<|im_end|>"]
SHOP = domain("shop")
TASKS = SHOP.splits()[SPLIT]


def play_task(engine: Any, index: int, summaries: Context | None = None, **job: Any) -> Trajectory:
    environment, task = SHOP.open(SPLIT, index, {}), SHOP.task(SPLIT, index)
    played = Job(run="run", group="group", env="shop", split=SPLIT, task=index, **job)
    return play(
        played,
        engine=engine,
        renderer=ChatRenderer(TOKENIZER, environment.tools),
        environment=environment,
        user=ScriptedUser(task.opening, task.replies),
        journal=FakeJournal(),
        context=summaries or context_factory(played, endpoints={}),
    )


def first_prompt(task: Task) -> "array[int]":
    """The conversation up to the first turn."""
    return TOKENIZER.encode(f"<|im_start|>user\n{task.opening}<|im_end|>\n<|im_start|>assistant\n")

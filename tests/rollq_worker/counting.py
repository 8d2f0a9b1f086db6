"""Episodes of examples/count_squares.py, the environment with images."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rollq.env import Domain
from rollq.job import Budget, Job
from rollq.trajectory import Trajectory
from rollq_worker import environments
from rollq_worker.episode.loop import play
from rollq_worker.fakes import FakeJournal
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.users.scripted import ScriptedUser

NAME = "count_squares"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / f"{NAME}.py"


def install(monkeypatch: pytest.MonkeyPatch) -> Domain:
    """The example as an environment of this process."""
    spec = importlib.util.spec_from_file_location(NAME, EXAMPLE)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    domain: Domain = module.load("")
    monkeypatch.setitem(environments._domains, NAME, domain)
    return domain


def play_task(
    domain: Domain, index: int, engine: Any, tokenizer: Tokenizer, **budget: int
) -> Trajectory:
    environment, task = domain.open("train", index, {}), domain.task("train", index)
    return play(
        Job(run="run", group="group", env=NAME, task=index, budget=Budget(**budget)),
        engine=engine,
        renderer=ChatRenderer(tokenizer, environment.tools),
        environment=environment,
        user=ScriptedUser(task.opening, task.replies),
        journal=FakeJournal(),
    )

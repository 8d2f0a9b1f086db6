"""Agents in files of a test's own."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rollq_worker.agents import known_agents
from rollq_worker.agents.known_agents import add_file
from tests.rollq_worker.agents.played import ASKS


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(known_agents.FILES.variable, raising=False)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Writes an agent's file and has this process know it. Returns its name."""

    def write(text: str, name: str = "agent.py", function: str = "") -> str:
        path = tmp_path / name
        path.write_text(
            textwrap.dedent(ASKS if name.endswith(".py") and not function else "")
            + textwrap.dedent(text)
        )
        return add_file(f"{path}:{function}" if function else str(path))

    return write

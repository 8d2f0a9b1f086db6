"""Claude Code and Codex CLI as they come from npm, in a network of their own with nothing but
loopback: `make test-agents`.
"""

import json
import shutil
import socket
from typing import Any

import pytest

from rollq.trajectory import Trajectory
from rollq_worker.agents.known_agents import add_file
from rollq_worker.agents.recorded import AgentDiverged
from tests.conftest import REPO
from tests.rollq_worker.agents.played import play, text_of

pytestmark = pytest.mark.agents
COMMANDS = (
    r"printf 'def add(a, b):\n    return a - b\n' > add.py",
    "cat add.py",
    "sed -i s/-/+/ add.py",
    'python3 -c "import add; print(add.add(1, 41))"',
)
TOOLS = {"claude_code": ("Bash", "command"), "codex": ("exec_command", "cmd")}


@pytest.fixture(autouse=True)
def alone() -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"], "run it by `make test-agents`"


def said(agent: str) -> list[str]:
    tool, key = TOOLS[agent]
    return [
        *(json.dumps({"name": tool, "arguments": {key: command}}) for command in COMMANDS),
        "It is fixed.",
    ]


def played(agent: str, texts: list[str], **options: Any) -> Trajectory:
    program = {"claude_code": "claude", "codex": "codex"}[agent]
    assert shutil.which(program), "run it by `make test-agents`"
    budget = {"max_turns": 20, "max_tokens": 400_000, "max_new_tokens": 4000}
    return play(
        add_file(str(REPO / f"examples/agents/{agent}.sh")), *texts, budget=budget, **options
    )


@pytest.mark.parametrize("agent", TOOLS)
def test_it_reads_edits_and_tests_a_file(agent: str) -> None:
    done = played(agent, said(agent))
    assert (done.turns, done.stop) == (len(COMMANDS) + 1, "done")
    assert done.info["agent_output"].strip().endswith("It is fixed.")
    sampled = [text_of(event.ids) for event in done.events if type(event).__name__ == "Sampled"]
    assert sampled == said(agent)  # each once, and nothing else was asked of the policy
    assert sum(done.mask) == sum(len(text) + 1 for text in sampled)
    results = [message["content"] for message in done.messages if message["role"] == "tool"]
    assert "return a - b" in results[1] and "42" in results[3]


def test_another_attempt_of_claude_code_goes_on_after_any_turn() -> None:
    whole = played("claude_code", said("claude_code"))
    ends = [n for n, event in enumerate(whole.events, 1) if type(event).__name__ == "Sampled"]
    for turns, end in enumerate(ends, 1):
        again = played(
            "claude_code", [*said("claude_code")[turns:], "never"], recorded=whole.events[:end]
        )
        assert again.tokens == whole.tokens and again.mask == whole.mask


def test_another_attempt_of_codex_starts_afresh() -> None:
    """It numbers the results of its commands at random."""
    whole = played("codex", said("codex"))
    with pytest.raises(AgentDiverged, match="Chunk ID"):
        played("codex", said("codex")[2:], recorded=whole.events[:5])

"""Claude Code and Codex CLI as they come from npm, in a network of their own with nothing but
loopback: `make test-agents`.
"""

import json
import shutil
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollq.events import Sampled
from rollq.trajectory import Trajectory
from rollq_worker.agents.known_agents import add_file
from rollq_worker.failures import Diverged
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeUser
from rollq_worker.protocols import Generated, SampleRequest
from tests.conftest import REPO
from tests.rollq.token_rows import batch_of
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


def played(agent: str, texts: list[str], script: str = "", **options: Any) -> Trajectory:
    program = {"claude_code": "claude", "codex": "codex"}[agent]
    assert shutil.which(program), "run it by `make test-agents`"
    budget = {"max_turns": 20, "max_tokens": 400_000, "max_new_tokens": 4000}
    script = script or str(REPO / f"examples/agents/{agent}.sh")
    return play(add_file(script), *texts, budget=budget, **options)


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


def png() -> bytes:
    """A picture of one pixel."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\xff\0\0")),
        (b"IEND", b""),
    ]
    written = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def own_tools(folder: Path) -> dict[str, list[str]]:
    """What a policy says that uses each agent's own tools on a file and on an image."""
    file, image = str(folder / "add.py"), str(folder / "x.png")
    body = "def add(a, b):\n    return a - b\n"
    edit = {"file_path": file, "old_string": "a - b", "new_string": "a + b"}
    claude: list[tuple[str, dict[str, Any]]] = [
        ("Write", {"file_path": file, "content": body}),
        ("Read", {"file_path": file}),
        ("Edit", edit),
        ("Edit", {**edit, "old_string": "def  add", "new_string": "def sum"}),
        ("Edit", {**edit, "old_string": "a", "new_string": "x", "replace_all": True}),
        ("Bash", {"command": f"cat {file}"}),
        ("Read", {"file_path": image}),
    ]
    codex: list[tuple[str, dict[str, Any]]] = [
        ("exec_command", {"cmd": f"cat > {file} <<'END'\n{body}END"}),
        ("update_plan", {"plan": [{"step": "fix it", "status": "in_progress"}]}),
        ("exec_command", {"cmd": f"sed -i s/-/+/ {file}; cat {file}"}),
        ("view_image", {"path": image}),
    ]
    return {
        agent: [json.dumps({"name": name, "arguments": given}) for name, given in calls]
        for agent, calls in (("claude_code", claude), ("codex", codex))
    }


@pytest.mark.parametrize("agent", TOOLS)
def test_its_own_tools_keep_one_trace(agent: str, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png())
    calls = own_tools(tmp_path)[agent]
    done = played(agent, [*calls, "It is fixed."])
    results = [message["content"] for message in done.messages if message["role"] == "tool"]
    assert (len(done.traces), done.turns) == (1, len(calls) + 1)
    assert "a + b" in results[2] if agent == "codex" else "x + b" in results[5]
    assert results[-1] == "[image]"


@pytest.mark.parametrize("agent", TOOLS)
def test_an_unreadable_call_is_told_to_the_policy(agent: str) -> None:
    tool, key = TOOLS[agent]
    broken = json.dumps({"name": tool, "arguments": {key: "echo hi"}})[:-3]
    done = played(agent, [broken, "It is fixed."])
    [told] = [message["content"] for message in done.messages if message["role"] == "tool"]
    assert "InputValidationError" in told or "failed to parse function arguments" in told
    assert (len(done.traces), done.turns) == (1, 2)


@pytest.mark.parametrize("agent", TOOLS)
def test_a_task_may_begin_as_a_flag_does(agent: str) -> None:
    tasks = {"environment": FakeEnvironment(system_prompt=""), "user": FakeUser(["- Fix it."])}
    done = played(agent, ["It is fixed."], **tasks)
    assert (done.turns, done.stop) == (1, "done")


@pytest.mark.parametrize("agent", TOOLS)
def test_a_policy_that_ends_its_agent_is_graded(agent: str) -> None:
    tool, key = TOOLS[agent]
    kill = json.dumps({"name": tool, "arguments": {key: "kill -9 $PPID"}})
    done = played(agent, [kill, "never"])
    assert (done.stop, done.reward, done.turns) == ("done", 0.0, 1)
    assert done.info["agent_output"].endswith("[ended by signal 9]")


def test_a_turn_of_codex_that_is_cut_ends_its_episode() -> None:
    done = played("codex", [*said("codex")[:1], "x" * 5000])
    assert (done.stop, done.reward, done.turns) == ("length", 0.0, 2)


class Policy(FakeEngine):
    """Samples by the rendered conversation: an agent asks for helpers in its own order."""

    def __init__(self, says: Callable[[str], str]) -> None:
        super().__init__(("",))
        self.says = says

    def generate(self, request: SampleRequest) -> Generated:
        self.texts = (self.says(text_of(request.ids)),)
        return super().generate(request)


def asks_a_helper(conversation: str) -> str:
    if "SUBTASK" in conversation and "Fix it." not in conversation:
        return "The helper says 7."
    if "Async agent launched" in conversation and "The helper says 7." not in conversation:
        return "I wait."
    if "[tool]" in conversation:
        return "It is fixed."
    arguments = {"description": "look it up", "prompt": "SUBTASK", "subagent_type": "claude"}
    return json.dumps({"name": "Agent", "arguments": arguments})


def fills_its_context(agent: str) -> Callable[[str], str]:
    tool, key = TOOLS[agent]

    def says(conversation: str) -> str:
        asked = conversation.rsplit("[user]")[-1]
        if "TEXT ONLY" in asked or "CHECKPOINT COMPACTION" in asked:
            return "<summary>HALF FIXED</summary>"
        if "HALF FIXED" in conversation:
            return "It is fixed."
        command = "seq 1 20000 | head -c 25000"
        return json.dumps({"name": tool, "arguments": {key: command}})

    return says


def compacting(agent: str, folder: Path) -> str:
    """The example's script, for an agent that shortens its conversation early."""
    script = (REPO / f"examples/agents/{agent}.sh").read_text()
    early = {
        "claude_code": ("exec", "export CLAUDE_CODE_AUTO_COMPACT_WINDOW=100000\nexec"),
        "codex": ("web_search", "model_auto_compact_token_limit = 60000\nweb_search"),
    }
    path = folder / f"{agent}.sh"
    path.write_text(script.replace(*early[agent], 1))
    return str(path)


def parts(done: Trajectory) -> list[tuple[str, str]]:
    """The kind of each row of an episode, and the last that was sampled in it. The rows of
    `traces="main"` are those of kind main.
    """
    rows = done.segments()
    main = batch_of([done]).arrays(traces="main")
    own = [row for row in rows if row.kind == "main"]
    assert main.mask.sum(1).tolist() == [row.sampled_tokens for row in own]
    assert main.weights.sum() == pytest.approx(1.0)
    ends = [[event for event in row.events if isinstance(event, Sampled)][-1] for row in rows]
    return [(row.kind, text_of(end.ids)) for row, end in zip(rows, ends, strict=True)]


def test_a_sub_agent_of_claude_code_is_a_helper() -> None:
    done = played("claude_code", [], engine=Policy(asks_a_helper), user=FakeUser(["Fix it."]))
    assert parts(done) == [("main", "It is fixed."), ("helper", "The helper says 7.")]


@pytest.mark.parametrize("agent", TOOLS)
def test_the_main_conversation_goes_on_when_it_is_shortened(agent: str, tmp_path: Path) -> None:
    engine = Policy(fills_its_context(agent))
    done = played(agent, [], script=compacting(agent, tmp_path), engine=engine)
    (first, call), request, last = parts(done)
    assert (first, json.loads(call)["name"]) == ("main", TOOLS[agent][0])
    assert request == ("helper", "<summary>HALF FIXED</summary>")
    assert last == ("main", "It is fixed.")


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
    with pytest.raises(Diverged, match="Chunk ID"):
        played("codex", said("codex")[2:], recorded=whole.events[:5])

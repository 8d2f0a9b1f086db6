"""Claude Code and Codex CLI in real workers, one of which is killed in mid-episode: `make
test-agents`.
"""

import subprocess
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from rollq import Budget, Client, Job
from rollq.export.record import record
from rollq_worker.agents import known_agents
from rollq_worker.environments import files
from tests.conftest import REPO
from tests.e2e.stack import Stack, stop
from tests.e2e.test_agents import check_traces, requests_by_job
from tests.processes import alive
from tests.recorder import recording
from tests.waiting import until

pytestmark = pytest.mark.agents
TURNS, LEFT_RUNNING = 6, "sleep 6007"
CODING = r"""
    from rollq.env import RESPOND, Action, Grade, Observation, Task

    TOOLS = {"claude_code": ("Bash", "command"), "codex": ("exec_command", "cmd")}
    COMMANDS = (
        "sleep 6007 >/dev/null 2>&1 &",
        r"printf 'def add(a, b):\n    return a - b\n' > add.py",
        "cat add.py",
        "sed -i s/-/+/ add.py",
        'python3 -c "import add; print(add.add(1, 41))"',
    )

    class Episode:
        tools, system_prompt = (), ""

        def reset(self, user):
            return user.open()

        def step(self, action):
            self.answer = action.arguments["content"]
            return Observation("", done=True)

        def grade(self):
            return Grade(float(self.answer == "It is fixed."))

    class Coding:
        name, version = "coding", "coding 1"

        def splits(self):
            return dict.fromkeys(TOOLS, 1)

        def task(self, split, index):
            tool, key = TOOLS[split]
            moves = [Action(tool, {key: command}) for command in COMMANDS]
            moves.append(Action(RESPOND, {"content": "It is fixed."}))
            opening, said = f"Fix add.py, {split}.", ("Thanks.",)
            return Task(id=split, hash="1", instruction="", opening=opening, replies=said, moves=moves)

        def open(self, split, index, args):
            return Episode()

    def load(variant):
        return Coding()
"""  # noqa: E501


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the command line of each."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = parent, (folder / "cmdline").read_text().replace("\0", " ")
    return found


def started_by(worker: int) -> dict[int, str]:
    """What the agent is: the children of the worker, theirs, and the command that the policy has
    left running.
    """
    running, below, found = processes(), {worker}, dict[int, str]()
    while below := {pid for pid, (parent, _) in running.items() if parent in below}:
        found |= {pid: running[pid][1] for pid in below}
    return found | {pid: words for pid, (_, words) in running.items() if LEFT_RUNNING in words}


def leaves_commands_running() -> bool:
    """True if Claude Code leaves `command &` running. Version 2.1.332 ends it."""
    version = subprocess.run(["claude", "--version"], capture_output=True, text=True).stdout
    return version.startswith("2.1.197")


@pytest.fixture
def coding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment's file. Workers that are started know it, and no files of other tests."""
    for known in (known_agents.FILES, files.FILES):
        monkeypatch.setenv(known.variable, "")
    path = tmp_path / "coding.py"
    path.write_text(textwrap.dedent(CODING))
    return path


def job_of(coding: Path, agent: str) -> Job:
    return Job(
        env=files.add_file(str(coding)),
        split=agent,
        task=0,
        agent=known_agents.add_file(str(REPO / f"examples/agents/{agent}.sh")),
        budget=Budget(max_turns=20, max_tokens=400_000, max_new_tokens=4000),
    )


@pytest.mark.parametrize("agent", ["claude_code", "codex"])
def test_another_worker_goes_on(stack: Stack, coding: Path, agent: str) -> None:
    """With Claude Code at the same token. Codex starts afresh, because it numbers what it gives
    back at random.
    """
    job = job_of(coding, agent)
    stack.engine("--env", str(coding), "--latency", "1", "--mistakes", "0")
    with recording(stack.engine_url, stack.folder / "calls.jsonl") as proxy:
        first = stack.worker(2, engine_url=proxy.url)
        with Client(stack.redis_url, run="r") as client:
            client.submit([job])
            client.seal()
            stack.wait(lambda: len(proxy.calls()) == 3, 150, "some turns")
            started = started_by(first.pid)
            parts = ["claude" if agent == "claude_code" else "codex"]
            if agent == "claude_code" and leaves_commands_running():
                parts.append(LEFT_RUNNING)
            for part in parts:
                assert any(part in words for words in started.values()), started
            first.kill()
            until(lambda: not any(map(alive, started)))
            second = stack.worker(2, engine_url=proxy.url)
            [batch] = client.batches(groups=1, timeout=150)
            [line] = map(record, batch.trajectories)
            batch.ack()
            stats = client.stats()
        calls = requests_by_job(proxy.calls())[line["job"]]
    until(lambda: not started_by(second.pid))
    assert (line["reward"], line["turns"], line["stop"]) == (1.0, TURNS, "done")
    assert (stats["done"], stats["delivered"], stats["dead"]) == (1, 1, 0)
    if agent == "claude_code":
        assert (stats["resumed"], stats["failures"]) == (1, {"worker": 1})
        assert len(calls) <= TURNS + 1  # the turn in flight at the most was sampled twice
    else:
        assert (stats["resumed"], stats["failures"]) == (0, {"worker": 1})
    played = {tuple(sent): (sent, said) for sent, said in calls[-TURNS:]}
    check_traces(line, [*played.values()])


@pytest.mark.parametrize("agent", ["claude_code", "codex"])
def test_three_workers_that_stop_cost_nothing(stack: Stack, coding: Path, agent: str) -> None:
    job = job_of(coding, agent)
    stack.engine("--env", str(coding), "--latency", "1", "--mistakes", "0")
    with (
        recording(stack.engine_url, stack.folder / "calls.jsonl") as proxy,
        Client(stack.redis_url, run="r") as client,
    ):
        client.submit([job])
        client.seal()
        for _ in range(3):
            worker, before = stack.worker(2, engine_url=proxy.url), len(proxy.calls())
            stack.wait(lambda: len(proxy.calls()) >= before + 2, 150, "some turns")  # noqa: B023
            stop(worker)
        last = stack.worker(2, engine_url=proxy.url)
        [batch] = client.batches(groups=1, timeout=150)
        [line] = map(record, batch.trajectories)
        batch.ack()
        stats = client.stats()
    until(lambda: not started_by(last.pid))
    assert (line["reward"], line["turns"], line["stop"]) == (1.0, TURNS, "done")
    assert (stats["done"], stats["dead"], stats["failures"]) == (1, 0, {})

"""Commands of the policy in real worker processes, one of which is killed between two of them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollq import Client, Job
from rollq.events import Observed
from rollq_worker.environments.files import add_file
from tests import bubblewrap
from tests.e2e.stack import Stack
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")
SECONDS = 7.125
"""A limit that no other sandbox of the machine has."""
FILE = f"""\
from pathlib import Path

from rollq_worker.environments.dataset import dataset
from rollq_integrations.sandbox import Bubblewrap, Limits, commands

tools = commands("bash", "python", sandbox=lambda: Bubblewrap(Limits(seconds={SECONDS})))
load = dataset(Path(__file__).with_name("rows.jsonl"), reward="number", tools=tools)
"""
CALLS = [
    {"name": "bash", "arguments": {"command": "seq 10 > numbers; wc -l < numbers"}},
    {"name": "python", "arguments": {"code": "print(sum(map(int, open('numbers'))))"}},
    {"name": "bash", "arguments": {"command": "sleep 600 & ls"}},
]
SIZE = 4


def sandboxes() -> list[str]:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listed.splitlines() if f'"seconds": {SECONDS}' in line]


@pytest.mark.parametrize("isolated", [False, True])
def test_another_worker_runs_the_commands_again(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    bubblewrap.require()
    row = {"prompt": "What is the sum from 1 to 10?", "answer": 55, "calls": CALLS}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    file = tmp_path / "sums.py"
    file.write_text(FILE)
    monkeypatch.setenv("ROLLQ_ENV_FILES", "")
    name = add_file(str(file))
    env = stack.run("env", "check", str(file), "--json")
    assert env.returncode == 0, env.stdout + env.stderr
    monkeypatch.setenv("ROLLQ_ISOLATE", "sums@*" if isolated else "")
    stack.engine("--env", str(file), "--latency", "1")
    first = stack.worker(SIZE, "--env", str(file))
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(env=name, task=0, size=SIZE, group="g")])
        client.seal()
        stack.wait(
            lambda: sum(len(client.job(f"r/g/{n}").journal) > 3 for n in range(SIZE)),
            150,
            "the first turns",
        )
        assert sandboxes()
        first.send_signal(signal.SIGKILL)
        first.wait(60)
        until(lambda: not sandboxes(), 30)
        stack.worker(SIZE, "--env", str(file))
        [batch] = client.batches(1, timeout=150)
        stats = client.stats()
        batch.ack()
    assert stats["resumed"] > 0 and stats["dead"] == 0
    for trajectory in batch.trajectories:
        assert trajectory.reward == 1.0
        texts = [
            reply["content"]
            for e in trajectory.events
            if isinstance(e, Observed)
            for reply in e.replies
        ]
        assert texts == ["10\n", "55\n", "numbers\n", ""]
    until(lambda: not sandboxes(), 30)

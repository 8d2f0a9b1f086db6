"""Pages as a reader works through them: every command in its order, in a folder of their own, with
real processes.

Only addresses are others: several tests run on one machine.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import REPO, free_port
from tests.documented_commands import commands, write_files
from tests.e2e.stack import Stack

TYPED = (
    "docs/quickstart.md",
    "docs/recover.md",
    "docs/view.md",
    "docs/evaluate.md",
    "docs/audit.md",
    "docs/commands.md",
)
"""Pages whose commands run here, but for those that the patterns below leave out."""
TRIED = ("CONTRIBUTING.md", "docs/environments.md", "docs/agents.md")
"""Pages of which only the commands run here that need nothing of theirs to serve."""
LEFT_OUT = r"^pip |^make |claude|codex|sglang\.|MODEL|--versions step-40|train-run|eval-1"
SERVES = {
    "redis": "Ready to accept connections",
    "engine": "ready at",
    "worker": "episodes at once",
    "view": "http://",
    "top": "worker",
}
"""Commands that serve until they are stopped, and what they print once they do."""


class Reader:
    """Types commands. What serves goes on in the background, in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis_port, engine_port = free_port(), free_port()
        self.stack = Stack(folder, f"redis://127.0.0.1:{self.redis_port}/0")
        self.engine_port = str(engine_port)
        self.variables = {
            "ROLLQ_REDIS_URL": self.stack.redis_url,
            "ROLLQ_ENGINE_URL": f"http://127.0.0.1:{engine_port}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.redis: subprocess.Popen[bytes] | None = None

    def type(self, line: str, codes: tuple[int, ...] = (0,)) -> str:
        """Runs a command to its end, or until it serves. Returns what it printed."""
        words = shlex.split(line)
        if words[0] == "rollq" and words[1] in SERVES and "--once" not in words:
            return self._serve(words[1:])
        done = subprocess.run(
            ["bash", "-ec", line],
            cwd=self.folder,
            env=os.environ | self.variables,
            text=True,
            capture_output=True,
        )
        assert done.returncode in codes, f"{line}\n{done.stdout}{done.stderr}{self.stack.logs()}"
        return done.stdout

    def _serve(self, words: list[str]) -> str:
        ports = {"redis": str(self.redis_port), "engine": self.engine_port, "view": "0"}
        more = ["--port", ports[words[0]]] if words[0] in ports else []
        if words == ["redis"]:
            more += ["--dir", "rollq-redis-6379"]  # the folder's name at the port of the page
        process = self.stack.start(*words, *more, env=self.variables, folder=self.folder)
        if words[0] == "redis":
            self.redis = process
        log: Path = process.log  # type: ignore[attr-defined]
        self.stack.wait(
            lambda: SERVES[words[0]] in log.read_text(), 150, f"rollq {' '.join(words)}"
        )
        return log.read_text()

    def stop_redis(self) -> None:
        assert self.redis is not None
        self.redis.terminate()
        assert self.redis.wait(60) == 0


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    for name in ("ROLLQ_BROKER_URL", "ROLLQ_TOKENIZER", "ROLLQ_CONCURRENCY"):
        monkeypatch.delenv(name, raising=False)
    write_files(tmp_path)
    reader = Reader(tmp_path)
    yield reader
    reader.stack.close()


def shown(page: str) -> list[str]:
    """The commands of a page that run here, in order."""
    assert page in (*TYPED, *TRIED)
    lines = [
        command.line for command in commands() if command.page == page and not command.is_synopsis
    ]
    return [line for line in lines if not re.search(LEFT_OUT, line)]


def start(reader: Reader, *submissions: str) -> None:
    for line in ("rollq redis", "rollq engine --mistakes 0.3", "rollq worker -c 16", *submissions):
        reader.type(line)


def test_quickstart(reader: Reader) -> None:
    [loop] = re.findall(
        r"```python\n(.*?)```", (REPO / "docs/quickstart.md").read_text(), re.DOTALL
    )
    address = "redis://127.0.0.1:6379/0"
    assert address in loop
    (reader.folder / "loop.py").write_text(loop.replace(address, reader.stack.redis_url))
    said = {line: reader.type(line) for line in shown("docs/quickstart.md")}
    assert "128 done" in said["rollq stats --run try"]
    assert re.findall(r"^step (\d)", said["python loop.py"], re.MULTILINE) == ["0", "1"]
    assert len((reader.folder / "try.jsonl").read_text().splitlines()) == 128


def test_recover(reader: Reader) -> None:
    """Without a worker, so that the jobs wait. One of them is dead, and the doctor finds
    no engine.
    """
    reader.type("rollq redis")
    reader.type("rollq submit --run try --env shop --tasks 0-7 --size 4")
    reader.type("rollq jobs cancel try/shop.train.3/0")
    codes: Mapping[str, tuple[int, ...]] = {"rollq doctor": (0, 1)}
    said = {}
    for line in shown("docs/recover.md"):
        if line.startswith("cp "):
            reader.stop_redis()
        if "--whole-run" in line:
            assert "32 submitted" in reader.type("rollq stats --run try")
            reader.type("rollq submit --run kept --env shop --tasks 0-1 --size 2")
        said[line] = reader.type(line, codes.get(line, (0,)))
    assert "cancelled" in said["rollq jobs list try"]
    assert "4 submitted" in reader.type("rollq stats --run kept")  # from the backup


def test_view(reader: Reader) -> None:
    start(reader, "rollq submit --run shop-grpo --env shop --tasks 0-1 --size 4 --seal")
    start_of_try = "rollq submit --run try --env shop --tasks 0-1 --size 4 --seal"
    for line in (start_of_try, "rollq pull --run try --groups 2 --out try.jsonl --timeout 300"):
        reader.type(line)
    for line in shown("docs/view.md"):
        reader.type(line.replace("RUN/GROUP/SAMPLE", "shop-grpo/shop.train.0/0"))
        if "--html" in line:
            assert "Content-Security-Policy" in (reader.folder / "rollout.html").read_text()


def test_evaluate(reader: Reader) -> None:
    start(reader)
    said = {line: reader.type(line) for line in shown("docs/evaluate.md")}
    assert all("pass^4" in text for text in said.values())


def test_audit(reader: Reader) -> None:
    start(reader, "rollq submit --run first --env shop --tasks 0-63 --seal")
    for line in shown("docs/audit.md"):
        said = reader.type(
            line.replace("http://127.0.0.1:30000", reader.variables["ROLLQ_ENGINE_URL"])
        )
    assert "verdict: ok" in said


@pytest.mark.slow
@pytest.mark.parametrize("page", TRIED)
def test_what_a_page_has_its_reader_try(page: str, reader: Reader) -> None:
    """Environments and agents of files, in the demo and in their check."""
    lines = [line.removeprefix(".venv/bin/") for line in shown(page)]
    lines = [line for line in lines if re.match(r"rollq (demo|env|show) ", line)]
    assert lines
    for line in lines:
        reader.type(line)


def test_commands_with_a_run_file(reader: Reader) -> None:
    start(reader)
    lines = [line for line in shown("docs/commands.md") if "--config" in line]
    assert len(lines) == 2
    for line in lines:
        reader.type(line)

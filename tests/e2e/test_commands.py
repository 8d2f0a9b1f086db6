"""The parts one by one, as the README starts them, in real processes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollq_worker.tokens
from tests.conftest import free_port
from tests.e2e.stack import Stack


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A running Redis, engine and worker, found by environment variables. SIGTERM must end each
    with code 0.
    """
    redis_port, engine_port = free_port(), free_port()
    stack = Stack(tmp_path, f"redis://127.0.0.1:{redis_port}/0")
    addresses = {
        "ROLLQ_ENGINE_URL": f"http://127.0.0.1:{engine_port}",
        "ROLLQ_BROKER_URL": "",
        "ROLLQ_TOKENIZER": "",
    }
    for name, value in {**addresses, "ROLLQ_CONCURRENCY": "8"}.items():
        monkeypatch.setenv(name, value)
    redis = ("redis", "--port", str(redis_port), "--dir", str(tmp_path / "redis"))
    engine = ("engine", "--port", str(engine_port))
    ready = ("Ready to accept connections", "ready at", "ready, 8 episodes at once")
    try:
        for command, line in zip((redis, engine, ("worker",)), ready, strict=True):
            process = stack.start(*command)
            stack.wait(lambda p=process, line=line: line in p.log.read_text(), 150, line)
        yield stack
        for process in reversed(stack.processes):
            process.terminate()
            assert process.wait(60) == 0
    finally:
        stack.close()


def rollq(stack: Stack, *command: str) -> str:
    """Run a command to its end. Returns its stdout."""
    done = stack.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_queue_tokenizer_and_labels(parts: Stack, tmp_path: Path) -> None:
    """A worker plays only the jobs of its queues, with the tokenizer that the producer pinned."""
    submit = ("submit", "--run", "other", "--env", "shop", "--tasks", "0-1", "--set", "queue=other")
    bundled = str(Path(rollq_worker.tokens.__file__).parent / "bundled" / "tokenizer")
    rollq(
        parts,
        *submit,
        "--set",
        f"tokenizer={bundled}",
        "--set",
        'labels.uid="7"',
        "--set",
        "labels.set=a",
        "--seal",
    )
    waits = "the live workers serve rollq only: start `rollq worker --queues other`"
    parts.wait(lambda: waits in rollq(parts, "stats", "--run", "other"), 60, "the explanation")
    parts.start("worker", "--queues", "other,more")
    out = tmp_path / "other.jsonl"
    rollq(parts, "pull", "--run", "other", "--groups", "2", "--out", str(out), "--timeout", "150")
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["labels"] for record in records] == [{"uid": "7", "set": "a"}] * 2

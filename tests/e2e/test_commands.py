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
    """A running Redis, engine and worker, found by environment variables. SIGTERM must end each with code 0."""
    redis_port, engine_port = free_port(), free_port()
    stack = Stack(tmp_path, f"redis://127.0.0.1:{redis_port}/0")
    addresses = {"ROLLQ_ENGINE_URL": f"http://127.0.0.1:{engine_port}", "ROLLQ_BROKER_URL": "", "ROLLQ_TOKENIZER": ""}
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


def rollq(stack: Stack, *command: str, code: int = 0) -> str:
    """Run a command to its end. Returns its stdout."""
    done = stack.run(*command)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_submit_pull_stats_show(parts: Stack, tmp_path: Path) -> None:
    out = tmp_path / "first.jsonl"
    submit = ("submit", "--run", "first", "--env", "shop", "--tasks", "0-2", "--size", "2", "--seal", "--json")
    said = json.loads(rollq(parts, *submit))
    assert said == {"run": "first", "groups": 3, "size": 2, "new": 6, "known": 0, "acked": 0, "sealed": True}

    parts.wait(lambda: parts.stats("first")["done"] == 6, 150, "all jobs")
    shown = rollq(parts, "show", "first/shop.train.0/1")
    assert "state     done, attempt 1" in shown
    assert "reward 1.0" in shown

    pull = ("pull", "--run", "first", "--groups", "3", "--out", str(out), "--timeout", "0", "--json")
    pulled = json.loads(rollq(parts, *pull))
    assert (pulled["groups"], pulled["missing"], pulled["delivered"], pulled["reward_mean"]) == (3, 0, 6, 1.0)
    assert json.loads(rollq(parts, *pull, code=1))["missing"] == 3  # all are acknowledged
    assert len(out.read_text().splitlines()) == 6
    assert json.loads(rollq(parts, *submit)) == {**said, "new": 0, "acked": 6}

    counts = json.loads(rollq(parts, "stats", "--run", "first", "--json"))
    expected = {"submitted": 6, "done": 6, "dead": 0, "groups_acked": 3, "delivered": 6}
    assert {name: counts[name] for name in expected} == expected
    record = json.loads(out.read_text().splitlines()[0])
    rollq(parts, "show", record["job"], code=1)
    assert record["job"] in rollq(parts, "show", str(out))
    assert "first  6 submitted  0 queued  0 leased  6 done" in rollq(parts, "stats")


def test_queue_tokenizer_and_labels(parts: Stack, tmp_path: Path) -> None:
    """A worker plays only the jobs of its queues, with the tokenizer that the producer pinned."""
    submit = ("submit", "--run", "other", "--env", "shop", "--tasks", "0-1", "--set", "queue=other")
    bundled = str(Path(rollq_worker.tokens.__file__).parent / "bundled" / "tokenizer")
    rollq(parts, *submit, "--set", f"tokenizer={bundled}", "--set", 'labels.uid="7"', "--set", "labels.set=a", "--seal")
    waits = "in queue other, and the live workers serve rollq: start `rollq worker --queues other`"
    parts.wait(lambda: waits in rollq(parts, "stats", "--run", "other"), 60, "the explanation")
    parts.start("worker", "--queues", "other,more")
    out = tmp_path / "other.jsonl"
    rollq(parts, "pull", "--run", "other", "--groups", "2", "--out", str(out), "--timeout", "150")
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["labels"] for record in records] == [{"uid": "7", "set": "a"}] * 2


def test_a_job_that_cannot_be_played_is_dead_and_says_why(parts: Stack) -> None:
    rollq(parts, "submit", "--run", "bad", "--env", "no-such", "--tasks", "0", "--seal", "--set", "force=true")
    assert json.loads(rollq(parts, "pull", "--run", "bad", "--groups", "1", "--json", code=1))["missing"] == 1
    shown = rollq(parts, "show", "bad/no-such.train.0/0")
    assert "stop      failed   reward -   failure job" in shown
    assert "no environment 'no-such'" in shown
    assert json.loads(rollq(parts, "stats", "--run", "bad", "--json"))["groups_dropped"] == 1

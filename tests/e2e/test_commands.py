"""The parts one by one, as the README starts them, in real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rollq import Client
from tests.conftest import free_port


def rollq(*args: str, env: dict[str, str], code: int = 0) -> str:
    """Run a command to its end. Returns its stdout."""
    command = [sys.executable, "-m", "rollq", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **env})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(*args: str, env: dict[str, str], ready: str) -> Iterator[subprocess.Popen[str]]:
    """A command, from its ready line until SIGTERM."""
    command = [sys.executable, "-m", "rollq", *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **env}
    ) as process:
        try:
            assert process.stdout
            said = ""
            while ready not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            yield process
            process.terminate()
            process.stdout.read()
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A running Redis, engine and worker; yields environment variables with their addresses."""
    redis_port, engine_port = free_port(), free_port()
    env = {
        "ROLLQ_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "ROLLQ_ENGINE_URL": f"http://127.0.0.1:{engine_port}",
        "ROLLQ_BROKER_URL": "",
        "ROLLQ_TOKENIZER": "",
        "ROLLQ_CONCURRENCY": "8",
    }
    data = ("--port", str(redis_port), "--dir", str(tmp_path / "redis"))
    with ExitStack() as stack:
        stack.enter_context(running("redis", *data, env=env, ready="Ready to accept connections"))
        stack.enter_context(running("engine", "--port", str(engine_port), env=env, ready="ready at"))
        stack.enter_context(running("worker", env=env, ready="ready, 8 episodes at once"))
        yield env


def test_submit_pull_stats_show(parts: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "first.jsonl"
    submit = ("submit", "--run", "first", "--env", "shop", "--tasks", "0-2", "--size", "2", "--seal", "--json")
    said = json.loads(rollq(*submit, env=parts))
    assert said == {"run": "first", "groups": 3, "size": 2, "new": 6, "known": 0, "sealed": True}

    looked = json.loads(rollq("pull", "--run", "first", "--groups", "1", "--no-ack", "--json", env=parts))
    assert (looked["groups"], looked["missing"], looked["delivered"], looked["reward_mean"]) == (1, 0, 2, 1.0)
    shown = rollq("show", "first/shop.train.0/1", env=parts)
    assert "state     done, attempt 1" in shown
    assert "reward 1.0" in shown

    # The group that was pulled with --no-ack stays held. The others come at once, then the pull times out.
    with Client(parts["ROLLQ_REDIS_URL"], run="first") as client:
        held = client.ledger.keys.held("train")
        for name in client.ledger.redis.zrange(held, 0, -1):
            client.ledger.redis.zadd(held, {name: client.ledger.scripts.now() + 3600})
    pull = ("pull", "--run", "first", "--groups", "3", "--out", str(out), "--timeout", "0", "--json")
    assert (
        json.loads(rollq("pull", "--run", "first", "--groups", "2", "--out", str(out), "--json", env=parts))["groups"]
        == 2
    )
    assert json.loads(rollq(*pull, env=parts, code=1))["missing"] == 3
    assert len(out.read_text().splitlines()) == 4

    counts = json.loads(rollq("stats", "--run", "first", "--json", env=parts))
    expected = {"submitted": 6, "done": 6, "dead": 0, "queued": 0, "leased": 0, "groups_acked": 2, "groups_held": 1}
    assert {name: counts[name] for name in expected} == expected
    assert (counts["delivered"], counts["duplicates"]) == (4, 0)
    record = json.loads(out.read_text().splitlines()[0])
    rollq("show", record["job"], env=parts, code=1)
    assert record["job"] in rollq("show", str(out), env=parts)
    assert "first  6 submitted  0 queued  0 leased  6 done" in rollq("stats", env=parts)


def test_a_sealed_run_ends_short(parts: dict[str, str]) -> None:
    rollq("submit", "--run", "short", "--env", "shop", "--tasks", "0", "--seal", env=parts)
    said = json.loads(rollq("pull", "--run", "short", "--groups", "5", "--json", env=parts, code=1))
    assert (said["groups"], said["missing"], said["delivered"], said["duplicates"]) == (1, 4, 1, 0)


def test_a_job_that_cannot_be_played_is_dead_and_says_why(parts: dict[str, str]) -> None:
    rollq("submit", "--run", "bad", "--env", "no-such", "--tasks", "0", "--seal", env=parts)
    assert json.loads(rollq("pull", "--run", "bad", "--groups", "1", "--json", env=parts, code=1))["missing"] == 1
    shown = rollq("show", "bad/no-such.train.0/0", env=parts)
    assert "stop      failed   reward -   failure job" in shown
    assert "no environment 'no-such'" in shown
    assert json.loads(rollq("stats", "--run", "bad", "--json", env=parts))["groups_dropped"] == 1

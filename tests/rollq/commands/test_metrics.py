"""`rollq metrics`, and what is wrong with its line."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from rollq import Client, Job
from rollq.metrics.exposition import Exposition
from tests.rollq.commands.conftest import Fails


def test_it_serves_until_it_is_stopped(redis_url: str) -> None:
    with Client(redis_url, run="r") as client:
        client.submit([Job(env="shop", task=0)])
    line = [sys.executable, "-m", "rollq", "metrics", "--port", "0", "--redis", redis_url]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2]
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b'rollq_jobs_queued{run="r"} 1.0\n' in answer.read()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_port_that_is_in_use(redis_url: str, fails: Fails) -> None:
    port = Exposition().serve("127.0.0.1", 0).rpartition(":")[2].partition("/")[0]
    assert "choose another port" in fails("metrics", "--redis", redis_url, "--port", port)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--port", "65536"), "expected a whole number of at least 0 and at most 65535"),
        (("--port", "no.such.host.invalid:0"), "metrics cannot be served at"),
    ],
)
def test_a_wrong_line(redis_url: str, fails: Fails, more: tuple[str, ...], says: str) -> None:
    assert says in fails("metrics", "--redis", redis_url, *more)


def test_without_redis(fails: Fails) -> None:
    assert "no Redis at" in fails("metrics", "--redis", "redis://127.0.0.1:1/0", code=1)

"""`rollq metrics`, and what is wrong with its line."""

import os
import signal
import subprocess
import sys
import urllib.request

from rollq import Client, Job


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

"""Engines that go away, and a job that kills them."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollq import Budget, Client
from rollq.client.client import internals
from tests.conftest import free_port
from tests.e2e.stack import Stack, check_all_delivered, submit_singles

HERE = Path(__file__).parent


class TestEngine:
    @pytest.mark.promise
    def test_an_outage_longer_than_the_deadline(self, stack: Stack):
        engine = stack.engine("--latency", "30")
        submit_singles(stack, "outage", 8, budget=Budget(deadline_s=12.0))
        stack.worker(8)
        stack.wait(lambda: stack.stats("outage")["leased"] == 8, 150, "eight leases")
        engine.kill()
        engine.wait(60)
        time.sleep(15)
        stack.start("engine", "--port", stack.engine_url.rsplit(":", 1)[1])
        stats = check_all_delivered(stack, "outage", 8)
        assert not stats["failures"], stack.logs()

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_job_that_kills_engines_is_found(self, stack: Stack, workers: int):
        port = free_port()
        stack.engine_url = f"http://127.0.0.1:{port}"
        task = 7
        text = _opening(task)
        over = threading.Event()
        deaths = []

        def supervise() -> None:
            while not over.is_set():
                engine = subprocess.Popen(
                    [sys.executable, str(HERE / "crashing_engine.py"), str(port), text, "0.3"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                while engine.poll() is None and not over.is_set():
                    time.sleep(0.05)
                deaths.append(time.monotonic())
                engine.kill()
                engine.wait()

        supervisor = threading.Thread(target=supervise)
        supervisor.start()
        try:
            submit_singles(stack, "killer", 21)
            for _ in range(workers):
                stack.worker(21 // workers + 1)
            stack.wait(lambda: stack.stats("killer")["done"] == 20, 300, "the other jobs")
            stack.wait(
                lambda: stack.stats("killer")["dead"] == 1,
                150,
                "the death of the job that kills engines",
            )
        finally:
            over.set()
            supervisor.join()
        stats = stack.stats("killer")
        print(f"{len(deaths) - 1} engines died")
        assert stats["failures"] == {"job": 1}, stack.logs()
        with Client(stack.redis_url, run="killer") as client:
            (letter,) = internals(client).reader.dead()
        assert letter.job_id == f"killer/g{task}/0" and letter.failure == "job"
        assert "kills engines" in letter.reason


def _opening(task: int) -> str:
    from rollq_worker.environments import domain

    return domain("shop").task("train", task).opening

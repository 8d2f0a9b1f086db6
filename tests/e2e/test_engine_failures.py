"""Engines that go away, and a job that kills them."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollq import Budget, Client, Job
from rollq.errors import FailureClass
from rollq_worker.environments import domain
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

    def test_a_job_that_kills_engines_ends_by_its_budget(self, stack: Stack):
        port = free_port()
        stack.engine_url = f"http://127.0.0.1:{port}"
        lethal = domain("shop").task("train", 7).opening
        over = threading.Event()

        def supervise() -> None:
            while not over.is_set():
                engine = subprocess.Popen(
                    [sys.executable, str(HERE / "crashing_engine.py"), str(port), lethal, "0.0"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                while engine.poll() is None and not over.is_set():
                    time.sleep(0.05)
                engine.kill()
                engine.wait()

        supervisor = threading.Thread(target=supervise)
        supervisor.start()
        try:
            with Client(stack.redis_url, run="killer", budgets={FailureClass.ENGINE: 2}) as client:
                client.submit([Job(env="shop", task=7, group="g7")])
            stack.worker(4)
            stack.wait(lambda: stack.stats("killer")["dead"] == 1, 300, "the death of the job")
            submit_singles(stack, "others", 4)
            check_all_delivered(stack, "others", 4)
        finally:
            over.set()
            supervisor.join()
        assert stack.stats("killer")["failures"] == {"engine": 2}, stack.logs()

"""Environments and users that raise, hang or crash: each costs its own job one attempt."""

import re
from pathlib import Path

import pytest

from rollq import Budget
from tests.e2e.hanging_server import HangingServer
from tests.e2e.stack import CALM_S, FAULTY_SHOP, Stack, check_all_delivered, submit_singles
from tests.stalls import Stalls


class TestFailingSteps:
    @pytest.mark.promise
    def test_a_step_that_fails_costs_its_job_one_attempt(self, stack: Stack, tmp_path: Path):
        faults = ("error", "memory", "quit", "panic", "recursion", "flood", "chatter")
        stack.engine("--latency", "0.2")
        for task, fault in enumerate(faults):
            args = {"fault": fault, "once": str(tmp_path / fault)}
            submit_singles(stack, "step", 1, first=task, env="faulty", env_args=args)
        submit_singles(stack, "step", 5, first=len(faults))
        stack.start("worker", "-c", "12", "--engine", stack.engine_url, env=FAULTY_SHOP)
        stats = check_all_delivered(stack, "step", 12)
        assert stats["failures"] == {"env": len(faults)}, stack.logs()

    @pytest.mark.parametrize("fault", ["sleep", "loop"])
    def test_a_step_that_hangs_costs_its_job_one_attempt(
        self, stack: Stack, tmp_path: Path, fault: str
    ):
        stack.engine()
        args = {"fault": fault, "once": str(tmp_path / "once")}
        submit_singles(stack, "step", 1, env="faulty", env_args=args, budget=Budget(deadline_s=8.0))
        submit_singles(stack, "step", 11, first=1)
        stack.start("worker", "-c", "12", "--engine", stack.engine_url, env=FAULTY_SHOP)
        stats = check_all_delivered(stack, "step", 12)
        assert stats["failures"] == {"env": 1}, stack.logs()

    def test_a_worker_with_most_slots_lost_starts_afresh(self, stack: Stack):
        stack.engine()
        submit_singles(
            stack,
            "stuck",
            3,
            env="faulty",
            env_args={"fault": "sleep"},
            budget=Budget(deadline_s=4.0),
        )
        worker = stack.start("worker", "-c", "4", "--engine", stack.engine_url, env=FAULTY_SHOP)
        with Stalls() as stalls:
            assert worker.wait(150) == 75, stack.logs()
        assert stack.stats("stuck")["leased"] == 0 or stalls.seconds > CALM_S
        assert re.search(rb"[34] of 4 slots are lost", worker.log.read_bytes())  # type: ignore[attr-defined]

    @pytest.mark.promise
    def test_a_user_that_stalls(self, stack: Stack, hanging_server: HangingServer):
        stack.engine()
        stalled = {"kind": "openai", "endpoint": "slow", "model": "m"}
        submit_singles(stack, "user", 1, first=7)
        stack.start(
            "worker", "-c", "8", "--engine", stack.engine_url, env=hanging_server.user_endpoint
        )
        stack.wait(lambda: stack.stats("user")["done"] == 1, 150, "one that loads everything")
        submit_singles(stack, "user", 1, user=stalled, budget=Budget(deadline_s=6.0))
        submit_singles(stack, "user", 6, first=1)
        stack.wait(lambda: stack.stats("user")["failures"], 150, "the stalled user's failure")
        stack.wait(lambda: stack.stats("user")["done"] == 7, 150, "the others")
        assert set(stack.stats("user")["failures"]) == {"user"}

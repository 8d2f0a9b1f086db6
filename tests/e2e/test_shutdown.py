"""What a worker does when it is told to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from rollq import Budget, Client
from rollq.events import Finish, Sampled
from rollq.ledger.constants import NEW, SENDING_S
from rollq.ledger.keys import QUEUE, Keys
from rollq.wire.events import decode_event
from tests.conftest import free_port
from tests.e2e.hanging_server import HangingServer
from tests.e2e.own_redis import OwnRedis
from tests.e2e.stack import Stack, stop, submit_singles
from tests.ledger_of import ledger_of


class TestStop:
    @pytest.mark.promise
    def test_many_running_generations_and_a_stalled_user(
        self, stack: Stack, hanging_server: HangingServer
    ):
        stack.engine("--latency", "30")
        submit_singles(
            stack, "stalled", 8, user={"kind": "openai", "endpoint": "slow", "model": "m"}
        )
        submit_singles(stack, "many", 72, budget=Budget(deadline_s=600.0))
        worker = stack.start(
            "worker", "-c", "64", "--engine", stack.engine_url, env=hanging_server.user_endpoint
        )
        broker = redis.Redis.from_url(stack.redis_url)
        keys = [Keys(run).leased for run in ("many", "stalled")]
        stack.wait(
            lambda: sum(map(broker.zcard, keys)) == 64 and hanging_server.asked, 300, "64 leases"
        )
        time.sleep(3)  # so that most replies have begun
        calm = stop(worker)
        many, stalled = stack.stats("many"), stack.stats("stalled")
        assert not many["failures"] and not stalled["failures"]
        if calm:
            assert (many["leased"], stalled["leased"]) == (0, 0), stack.logs()
            # Sent, or due within seconds for the next worker's reaper: a stopping worker has not
            # long to send.
            soon = broker.time()[0] + SENDING_S + 1
            due = sum(broker.zcount(Keys(run).queued, "-inf", soon) for run in ("many", "stalled"))
            assert broker.llen(QUEUE) + due >= 64
        broker.close()
        with Client(stack.redis_url, run="many") as client:
            pieces = [
                event
                for task in range(72)
                for blob in ledger_of(client).journal(f"many/g{task}/0")[1:]
                if isinstance(event := decode_event(blob, f"many/g{task}/0"), Sampled)
            ]
        partial = [piece for piece in pieces if piece.finish is Finish.ABORT]
        print(f"{len(partial)} partial turns of {sum(len(p.ids) for p in partial)} tokens")
        assert len(partial) > (25 if calm else 0) and all(piece.ids for piece in partial)

    def test_behind_a_router_the_turn_in_flight_is_dropped(
        self, stack: Stack, hanging_server: HangingServer
    ):
        submit_singles(stack, "router", 8)
        worker = stack.worker(8, engine_url=hanging_server.url)
        stack.wait(
            lambda: hanging_server.asked >= 9, 150, "the start's request and one of each job"
        )
        calm = stop(worker)
        stats = stack.stats("router")
        assert (stats["leased"], stats["queued"], stats["released"]) == (0, 8, 8) or not calm
        assert not stats["failures"]

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "frozen"])
    def test_redis_is_away(self, own_stack: Stack, own_redis: OwnRedis, how: int):
        own_stack.engine("--latency", "30")
        submit_singles(own_stack, "away", 16)
        worker = own_stack.worker(16)
        own_stack.wait(lambda: own_stack.stats("away")["leased"] == 16, 150, "16 leases")
        own_redis.stop(how)
        stop(worker)

    def test_sigint_does_the_same_and_a_second_signal_leaves_at_once(
        self, stack: Stack, hanging_server: HangingServer
    ):
        stack.engine("--latency", "30")
        submit_singles(stack, "int", 8)
        first = stack.worker(4)
        second = stack.worker(4)
        stack.wait(lambda: stack.stats("int")["leased"] == 8, 150, "eight leases")
        calm = stop(first, signal.SIGINT)
        stats = stack.stats("int")
        assert (stats["leased"], stats["released"]) == (4, 4) or stats["leased"] == 8 or not calm
        submit_singles(stack, "stall", 4, user={"kind": "openai", "endpoint": "slow", "model": "m"})
        third = stack.start(
            "worker", "-c", "12", "--engine", stack.engine_url, env=hanging_server.user_endpoint
        )
        stack.wait(lambda: hanging_server.asked, 150, "a stalled user")
        # Both arrive together.
        for number in (
            signal.SIGSTOP,
            signal.SIGTERM,
            signal.SIGQUIT,
            signal.SIGCONT,
        ):
            third.send_signal(number)
        assert third.wait(60) == 1
        said = third.log.read_bytes()  # type: ignore[attr-defined]
        assert b"stopping" in said and b"second signal" in said
        second.kill()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
    def test_before_it_is_ready(self, tmp_path: Path, number: int):
        # There is no Redis, so it never becomes ready.
        stack = Stack(tmp_path, f"redis://127.0.0.1:{free_port()}/0")
        code = """
from rollq.settings import Settings
from rollq_worker.process.main import main
from rollq_worker.process import startup_checks

check = startup_checks.check

def begun(*args):
    print("begun", flush=True)
    check(*args)

startup_checks.check = begun
main(Settings.from_env())
"""
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "ROLLQ_REDIS_URL": stack.redis_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout.readline() == b"begun\n"
        stop(process, number)
        process.stdout.close()


def test_a_task_that_starts_while_draining_goes_back(stack: Stack, hanging_server: HangingServer):
    """The engine is away, so every slot holds a message whose job is not claimed yet."""
    submit_singles(stack, "bounce", 8)
    worker = stack.worker(4, engine_url=f"http://127.0.0.1:{free_port()}")
    broker = redis.Redis.from_url(stack.redis_url)
    new = f"{QUEUE}\x06\x16{NEW}"  # the broker's list of jobs that were never played
    stack.wait(lambda: broker.llen(new) == 4, 150, "four messages taken")
    calm = stop(worker)
    # What was given back is ahead of new jobs, in the broker's list of the highest priority.
    assert broker.llen(new) + broker.llen(QUEUE) >= 8 or not calm
    broker.close()
    assert stack.stats("bounce")["claims"] == 0

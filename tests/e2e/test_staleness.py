"""The bound on staleness with real workers and engines: dropped groups, new weights at each step,
and engines that are restarted with old weights, miss an update, or come late.
"""

import json
import random
import subprocess
import threading
import urllib.request
from contextlib import suppress

import pytest

from rollq import Client, Job
from rollq.errors import LedgerError
from tests.conftest import free_port
from tests.e2e.stack import Stack
from tests.ledger_of import dead_letters_of

BATCH, STEPS = 4, 5
RESTARTS, MISSES, COMES = 1, 2, 3
"""The steps after which the second engine is restarted, misses an update, and gets the new weights
late.
"""


def load_weights(url: str, version: str) -> None:
    """The engine samples with these weights from now on, also in the middle of a turn."""
    body = json.dumps({"new_version": version, "abort_all_requests": False}).encode()
    request = urllib.request.Request(
        f"{url}/update_weight_version", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


class Engines:
    """Two engines. The second one is not reliable."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.ports = [free_port(), free_port()]
        self.processes = [self.start(port) for port in self.ports]
        for url in self.urls:
            load_weights(url, "0")

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def start(self, port: int) -> subprocess.Popen[bytes]:
        """It serves the version `default`, as an SGLang server that nobody told of an update."""
        self.stack.engine_url = f"http://127.0.0.1:{port}"
        process = self.stack.start("engine", "--port", str(port), "--latency", "0.05")
        self.stack.wait(lambda: self.stack._ready(process), 150, "the engine")
        return process

    def update(self, step: int) -> None:
        load_weights(self.urls[0], str(step + 1))
        if step == RESTARTS:
            self.processes[1].kill()
            self.processes[1].wait(60)
            self.processes[1] = self.start(self.ports[1])
        elif step == COMES:
            self.late = threading.Timer(1.0, load_weights, (self.urls[1], str(step + 1)))
            self.late.start()
        elif step != MISSES:
            load_weights(self.urls[1], str(step + 1))


@pytest.mark.parametrize("bound", [pytest.param(0, marks=pytest.mark.promise), 1])
def test_no_token_is_older_than_the_bound(stack: Stack, bound: int) -> None:
    engines = Engines(stack)
    workers = [
        stack.worker(4, "--engine", engines.urls[1], engine_url=engines.urls[0]) for _ in range(2)
    ]
    jobs = [
        Job(env="shop", task=n % 50, group=f"g{n}", size=2)
        for n in range(BATCH * (STEPS + bound + 1))
    ]
    with Client(stack.redis_url, run="r") as client, Client(stack.redis_url, run="r") as producer:
        client.limit_staleness(BATCH, bound)
        client.publish(0)

        def produce() -> None:
            with suppress(LedgerError):  # the run is sealed in the end
                producer.submit(jobs)

        thread = threading.Thread(target=produce)
        thread.start()
        with client.consumer() as consumer:
            for step in range(STEPS):
                if step % 2 and (unfinished := dead_letters_of(client).open_groups()):
                    client.cancel(group=random.choice(unfinished))
                batch = consumer.next(BATCH, timeout=150)
                assert batch and batch.policy_step == step
                assert all(step - bound <= group.started_step <= step for group in batch.groups)  # type: ignore[operator]
                assert batch.staleness.unknown_tokens == 0
                assert batch.staleness.max is not None and batch.staleness.max <= bound
                engines.update(step)
                client.publish(step + 1)
                batch.ack()
        skips = client.stats()["skips"]
        client.cancel(run=True)
        thread.join(60)
        engines.late.join(60)
    assert skips == {}, "admission let groups in too early"
    assert all(worker.poll() is None for worker in workers)


def test_a_run_goes_on_once_its_only_engine_has_the_published_weights(stack: Stack) -> None:
    """The trainer publishes before the engine has them."""
    stack.engine()
    stack.worker(4)
    with Client(stack.redis_url, run="r") as client:
        client.limit_staleness(1, 0)
        client.publish(0, "first")
        client.submit([Job(env="shop", task=0, group="g", size=2)])
        stack.wait(
            lambda: "serves weights" in stack.run("stats", "--run", "r").stdout,
            60,
            "what is waited for",
        )
        load_weights(stack.engine_url, "first")
        batch = next(client.batches(1, timeout=60))
        assert (batch.staleness.max, batch.staleness.unknown_tokens) == (0, 0)

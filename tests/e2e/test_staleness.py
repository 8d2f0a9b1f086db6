"""The bound on staleness with real workers: episodes of random length, dropped groups, and new weights at each step."""

import json
import random
import threading
import urllib.request
from contextlib import suppress

import pytest

from rollq import Client, Job
from rollq.errors import LedgerError
from tests.e2e.stack import Stack

BATCH, STEPS = 4, 5


def load_weights(stack: Stack, version: str) -> None:
    """The engine samples with these weights from now on, also in the middle of a turn."""
    body = json.dumps({"new_version": version, "abort_all_requests": False}).encode()
    request = urllib.request.Request(
        f"{stack.engine_url}/update_weight_version", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("bound", [pytest.param(0, marks=pytest.mark.promise), 2])
def test_no_token_is_older_than_the_bound(stack: Stack, bound: int) -> None:
    stack.engine("--latency", "0.05")
    load_weights(stack, "0")
    workers = [stack.worker(4), stack.worker(4)]
    jobs = [Job(env="shop", task=n % 50, group=f"g{n}", size=2) for n in range(BATCH * (STEPS + bound + 1))]
    with Client(stack.redis_url, run="r") as client, Client(stack.redis_url, run="r") as producer:
        client.admit(BATCH, bound)
        client.publish(0)

        def produce() -> None:
            with suppress(LedgerError):  # the run is sealed in the end
                producer.submit(jobs)

        thread = threading.Thread(target=produce)
        thread.start()
        with client.consumer() as consumer:
            for step in range(STEPS):
                if step % 2 and (unfinished := client.dead_letters.open_groups()):
                    client.cancel(group=random.choice(unfinished))
                batch = consumer.next(BATCH, timeout=150)
                assert batch and batch.policy_step == step
                assert all(step - bound <= group.started_step <= step for group in batch.groups)  # type: ignore[operator]
                assert batch.staleness.max <= bound and batch.staleness.unknown_tokens == 0
                load_weights(stack, str(step + 1))
                client.publish(step + 1)
                batch.ack()
        skips = client.stats()["skips"]
        client.cancel(run=True)
        thread.join(60)
    assert skips == {}, "admission let groups in too early"
    assert all(worker.poll() is None for worker in workers)

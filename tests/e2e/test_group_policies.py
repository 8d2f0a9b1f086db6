"""Over-provisioning and dynamic sampling with real workers: stragglers are cut, and batches hold
groups with something to learn.
"""

import json
import time
import urllib.request

from rollq import Client, Group, Job
from tests.e2e.stack import Stack

GROUPS, SIZE, SPARE = 16, 2, 1
HEARTBEAT_S = 5.0
"""A worker finds out within this time that a job is not its own any more."""
LOAD_S = 10.0
"""What a busy machine adds to it."""


def running(engine_url: str) -> int:
    """Generations that the engine is busy with."""
    with urllib.request.urlopen(f"{engine_url}/v1/loads", timeout=5) as answer:
        return sum(int(rank["num_running_reqs"]) for rank in json.load(answer)["loads"])


def jobs() -> list[Job]:
    return [
        Job(env="shop", task=task, size=SIZE, spare=SPARE, group=f"g{task}")
        for task in range(GROUPS)
    ]


def test_stragglers_are_cut_and_a_batch_is_filled_up_with_groups_to_learn_from(
    stack: Stack,
) -> None:
    stack.engine("--latency", "3600")  # no generation ends on it
    slow_engine = stack.engine_url
    stack.worker(1)
    with Client(stack.redis_url, run="r") as client:
        client.submit(jobs()[:1])
        stack.wait(lambda: running(slow_engine) == 1, 150, "a straggler")

        stack.engine("--mistakes", "0.4", "--seed", "3")
        stack.worker(4)
        stack.wait(lambda: client.stats()["surplus"] == SPARE, 150, "the first group")
        began = time.monotonic()
        stack.wait(lambda: running(slow_engine) == 0, 60, "the engine to be free")
        took = time.monotonic() - began
        print(f"the engine was free {took:.1f} s after the group closed")
        assert took < HEARTBEAT_S + LOAD_S
        assert client.stats()["leased"] == 0

        client.submit(jobs()[1:])
        client.seal()
        seen: list[Group] = []

        def learnable(group: Group) -> bool:
            seen.append(group)
            return any(group.advantages)

        sizes = []
        for batch in client.batches(groups=2, timeout=150, where=learnable):
            sizes.append(len(batch.groups))
            assert all(len(set(group.rewards)) > 1 for group in batch.groups)
            batch.ack()
        stats = client.stats()

    assert all(len(group.trajectories) == group.size == SIZE and not group.dead for group in seen)
    equal = sum(len(set(group.rewards)) == 1 for group in seen)
    assert 0 < equal < GROUPS == len(seen)
    assert sizes[:-1] == [2] * (len(sizes) - 1)
    assert (sum(sizes), stats["groups_acked"]) == (GROUPS - equal, GROUPS - equal)
    assert list(stats["skips"].values()) == [equal]
    assert (stats["submitted"], stats["dead"]) == (GROUPS * (SIZE + SPARE), 0)
    assert (stats["done"], stats["surplus"]) == (GROUPS * SIZE, GROUPS * SPARE)
    stack.wait(lambda: running(slow_engine) == 0, HEARTBEAT_S + LOAD_S, "no straggler to be left")

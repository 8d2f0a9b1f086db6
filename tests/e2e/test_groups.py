"""A group of which one member fails, with a real worker."""

from pathlib import Path

import pytest

from rollq import Client, Job
from rollq.errors import FailureClass
from rollq.wire.codec import decode_header
from tests.e2e.stack import FAULTY_SHOP, Stack

SIZE = 4


@pytest.mark.promise
def test_only_the_failed_member_is_played_again_and_from_the_start(
    stack: Stack, tmp_path: Path
) -> None:
    stack.engine()
    stack.start("worker", "-c", "8", "--engine", stack.engine_url, env=FAULTY_SHOP)
    breaks_once = {"fault": "error", "once": str(tmp_path / "once")}
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(env="faulty", task=3, size=SIZE, group="g", env_args=breaks_once)])
        client.seal()
        stack.wait(lambda: client.stats()["done"] == SIZE, 150, "the group")
        states = [client.job(f"r/g/{sample}") for sample in range(SIZE)]
        assert sorted(state.attempt for state in states) == [1, 1, 1, 2]
        [failed] = [state for state in states if state.attempt == 2]
        assert (failed.failures, list(failed.set_aside)) == ({FailureClass.ENV: 1}, [1])
        assert all(
            not state.failures and not state.set_aside for state in states if state is not failed
        )
        # A new journal; nothing was resumed.
        assert decode_header(failed.journal[0], failed.id).attempt == 2
        assert (client.stats()["claims"], client.stats()["resumed"]) == (SIZE + 1, 0)
        [batch] = client.batches(1, timeout=10)
        [group] = batch.groups
        batch.ack()
    assert (group.rewards, list(group.dead)) == ([1.0] * SIZE, [])

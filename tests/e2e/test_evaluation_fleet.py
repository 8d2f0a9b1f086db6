"""An evaluation on engines and workers of its own, beside training: each of its tokens is of the
version that it is pinned to, whatever those engines serve before and meanwhile.
"""

from dataclasses import replace

import pytest

from rollq import Client, Job
from rollq.client.waits import explain
from rollq.job import Purpose
from tests.e2e.stack import Stack
from tests.e2e.test_staleness import load_weights
from tests.ledger_of import reader_of

TASKS = [
    Job(env="shop", split="test", task=task, queue="eval", weight_version="5") for task in range(3)
]


@pytest.mark.promise
def test_every_token_is_of_the_pinned_version(stack: Stack) -> None:
    stack.engine()
    of_training = stack.engine_url
    load_weights(of_training, "5")
    stack.worker(4)
    stack.engine("--latency", "0.1")
    of_evaluation = stack.engine_url
    load_weights(of_evaluation, "4")  # what the last evaluation left
    stack.worker(4, "--queues", "eval")
    with Client(stack.redis_url, run="r") as client:
        client.publish(5)
        evaluation = client.evaluate(TASKS, 2)
        reader = reader_of(client)
        stack.wait(
            lambda: "jobs are pinned to" in explain(reader, Purpose.EVAL), 60, "what is waited for"
        )
        client.submit([Job(env="shop", task=0, group="a", size=2)])
        assert next(client.batches(1, timeout=60)).staleness.max == 0  # training goes on
        assert client.stats()["submitted"] == 8 and not evaluation.done()
        load_weights(of_evaluation, "5")
        stack.wait(
            lambda: client.stats()["sampled_tokens"] > 0 and client.stats()["leased"],
            60,
            "the evaluation",
        )
        load_weights(of_evaluation, "6")  # too early: the rest waits
        client.publish(6)
        with pytest.raises(TimeoutError, match="jobs are pinned to"):
            evaluation.result(15)
        later = client.evaluate([replace(task, weight_version="6") for task in TASKS], 1)
        # What is left of the other one is not in its way.
        assert list(later.result(120).versions) == ["6"]
        assert not evaluation.done()
        load_weights(of_evaluation, "5")
        found = evaluation.result(120)
    assert (found.version, list(found.versions), found.complete, len(found.tries)) == (
        "5",
        ["5"],
        True,
        6,
    )

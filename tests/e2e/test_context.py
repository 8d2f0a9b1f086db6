"""Episodes whose conversation is shortened, in real workers, one of which is killed."""

from itertools import pairwise

import pytest

from rollq import Client, Job
from rollq.export.record import record
from rollq.export.validation import faults
from tests.e2e.stack import Stack
from tests.e2e.test_agents import check_traces, requests_by_job
from tests.recorder import recording

TASKS = (18, 14, 16)  # of 13 moves and more
CONTEXTS = (
    {"kind": "window", "turns": 3},
    {"kind": "summary"},
    {"kind": "summary", "endpoint": "sim", "model": "m"},
)


def one_trace(calls: list[tuple[list[int], list[int]]]) -> bool:
    return all(later[: len(sent)] == sent for (sent, _), (later, _) in pairwise(calls))


def test_another_worker_goes_on_behind_a_shortened_conversation(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.engine("--latency", "0.4")
    monkeypatch.setenv("ROLLQ_USER_ENDPOINTS", f"sim={stack.engine_url}/v1")
    with recording(stack.engine_url, stack.folder / "calls.jsonl") as proxy, Client(stack.redis_url, run="r") as client:
        for task, context in zip(TASKS, CONTEXTS, strict=True):
            client.submit([Job(env="shop", task=task, size=4, context={**context, "over": 2300})])
        client.seal()
        first = stack.worker(12, engine_url=proxy.url)
        stack.wait(lambda: len(proxy.calls()) > 12 * 5, 150, "some traces")
        first.kill()
        opened = [job for job, calls in requests_by_job(proxy.calls()).items() if not one_trace(calls)]
        stack.worker(12, engine_url=proxy.url)
        lines = []
        for batch in client.batches(groups=3, timeout=150):
            lines += [record(trajectory) for trajectory in batch.trajectories]
            batch.ack()
        stats = client.stats()
        seen = requests_by_job(proxy.calls())
    assert (len(lines), stats["dead"]) == (12, 0)
    assert stats["resumed"] >= 8  # the others had ended
    assert len(opened) >= 8
    for line in lines:
        assert (line["stop"], line["reward"], faults(line)) == ("done", 1.0, [])
        assert len(line["traces"]) > 1
        last = {tuple(sent): said for sent, said in seen[line["job"]]}
        assert len(seen[line["job"]]) - len(last) <= 1  # the turn in flight at the most
        check_traces(line, [([*sent], said) for sent, said in last.items()])

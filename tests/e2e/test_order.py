"""Who is played and delivered next, with real workers and producers."""

import signal

import pytest

from rollq import Client, Job
from rollq.ledger.replies import State
from tests.e2e.stack import Stack

SLOTS = 3
"""Of the worker that lives."""


@pytest.mark.promise
def test_a_dead_workers_jobs_are_next_and_so_are_their_groups(stack: Stack) -> None:
    stack.engine("--latency", "0.6")
    with Client(stack.redis_url, run="r") as client:
        names = [f"g{task}" for task in range(32)]
        client.submit([Job(env="shop", task=task, group=f"g{task}", size=2) for task in range(32)])
        client.seal()
        jobs = [f"r/{name}/{sample}" for name in names for sample in range(2)]
        victim = stack.worker(8)
        stack.wait(
            lambda: sum(client.job(job).state is State.LEASED for job in jobs[:16]) == 8,
            150,
            "eight jobs",
        )
        stack.worker(SLOTS)
        victim.send_signal(signal.SIGKILL)
        victim.wait(60)
        cut = [job for job in jobs if client.job(job).worker.endswith(f"-{victim.pid}")]
        cut = [job for job in cut if client.job(job).state is State.LEASED]
        assert len(cut) >= 6
        stack.wait(lambda: client.stats()["expired"] == len(cut), 60, "the end of its leases")
        states = [client.job(job) for job in jobs]
        untouched = {
            name
            for n, name in enumerate(names)
            if not states[2 * n].attempt + states[2 * n + 1].attempt
        }
        assert len(untouched) >= 6, "too little was left to play: this shows nothing"
        claims = client.stats()["claims"]
        stack.wait(
            lambda: all(client.job(job).attempt == 2 for job in cut),
            150,
            "a second attempt of each",
        )
        between = client.stats()["claims"] - claims
        # A message may be on its way to each slot, and each of the polls above takes some time.
        assert between <= len(cut) + 2 * SLOTS, f"{between} claims for {len(cut)} jobs"
        delivered = []
        for batch in client.batches(groups=1, timeout=150):
            delivered += [group.id for group in batch.groups]
            batch.ack()
            if {job.split("/")[1] for job in cut} <= {*delivered}:
                break
    last = max(delivered.index(job.split("/")[1]) for job in cut)
    before = untouched.intersection(delivered[:last])
    assert len(before) <= SLOTS, f"{before} were delivered before the last of {cut}"

"""The list of runs that have something to reap."""

import pytest
import redis

from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import ACTIVE
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.reaping import ActiveRuns
from tests.rollq.samples import claim, group


def test_a_run_is_on_it_while_it_has_jobs(client: "redis.Redis") -> None:
    active, ledger = ActiveRuns(client), Ledger(client, "r")
    assert active.names() == []
    ledger.submit(group())
    claim(ledger, "r/g/0")
    assert active.names() == ["r"]
    assert active.jobs("r") == (1, 1)
    active.remove("r")  # which finds its jobs
    assert active.names() == ["r"]
    for sample in range(2):
        DeadLetters(client, "r").cancel(f"r/g/{sample}")
    assert active.jobs("r") == (0, 0)
    active.remove("r")
    assert active.names() == []
    DeadLetters(client, "r").requeue("r/g/0")
    assert active.names() == ["r"]


def test_jobs_that_come_while_it_is_removed_keep_it(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission between the look and the removal lists the run again; one whose listing went
    before it does not.
    """
    active, ledger = ActiveRuns(client), Ledger(client, "r")
    monkeypatch.setattr(ledger, "activate", lambda: active.add("r"))
    ledger.submit(group())
    client.zrem(ACTIVE, "r")
    active.remove("r")
    assert active.names() == ["r"]


def test_all_runs_come_one_after_the_other(client: "redis.Redis") -> None:
    active = ActiveRuns(client)
    assert active.next_of_all() is None
    for name in ("a", "b", "c"):
        Ledger(client, name).submit(group(run=name))
    assert [active.next_of_all() for _ in range(8)] == ["a", "b", "c", None, "a", "b", "c", None]

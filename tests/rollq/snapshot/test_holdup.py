"""What holds a run up when it is no problem: what its episodes wait for, from a real Redis."""

from dataclasses import replace
from typing import Any

import pytest

from rollq.client.client import Client, internals
from rollq.client.waits import explain, holdup
from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import AWAY, READY, STALLED, Wait, live_workers
from rollq.snapshot import fleet
from tests.rollq.client.fleets import live, used
from tests.rollq.groups import finish_groups
from tests.rollq.samples import claim, group


def test_nothing_is_pending(client: Client, ledger: Ledger) -> None:
    assert holdup(internals(client).reader).startswith("run r: it does not exist yet")
    finish_groups(ledger, "a")
    assert "1 group is ready, and no consumer has taken them yet" in holdup(
        internals(client).reader
    )
    next(client.batches(1)).ack()
    assert holdup(internals(client).reader) == ""


def test_what_the_episodes_wait_for_and_for_how_long(client: Client, ledger: Ledger) -> None:
    ledger.submit(group("g", size=3))
    for sample in range(3):
        claim(ledger, f"r/g/{sample}")
    waits = (
        Wait("r/g/1", "the user", 75.0),
        Wait("r/g/0", "engine", 2.0),
        Wait("other/g/1", "engine", 99.0),
    )
    live(ledger, busy=3, waits=waits)
    assert explain(internals(client).reader, wanted=1) == ""
    assert holdup(internals(client).reader, Purpose.TRAIN, wanted=1) == (
        "run r: 0 queued, 3 being played: 1 waits for the user, 1 waits for engine; "
        "r/g/1 has waited the longest,"
        " 75 s for the user. `rollq stats --late --run r` shows each of them"
    )


def test_what_keeps_queued_jobs_waiting(client: Client, ledger: Ledger) -> None:
    ledger.submit(group("g", size=3))
    claim(ledger, "r/g/0")
    live(ledger, busy=4, engines=(used("http://a", READY, 4),))
    assert "All 4 slots are taken: another worker, or a larger -c, would help" in holdup(
        internals(client).reader
    )
    live(ledger, busy=1, engines=(used("http://a", READY, 1),))
    assert holdup(internals(client).reader).endswith(
        "`rollq stats --late --run r` shows the oldest"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"engines": (used("http://a", READY, 4), used("http://b", AWAY))},
            "The engine at http://b (1 of 2) is away: ",
        ),
        (
            {"engines": (used("http://a", READY, 4), used("http://b", STALLED))},
            "The engine at http://b (1 of 2) has re",
        ),
        (
            {"left_alone": (("r", "no such file here; start it with --env FILE"),)},
            "v cannot play it: no such file",
        ),
        (
            {"tokenizer": "t2"},
            "v cannot play it: it has tokenizer t2 and chat template c1, the run ",
        ),
    ],
    ids=[
        "an engine is away",
        "an engine hangs",
        "a worker without the file",
        "a worker with another tokenizer",
    ],
)
def test_what_is_wrong_with_one_of_several_comes_first_and_more_workers_are_no_remedy(
    client: Client, ledger: Ledger, wrong: dict[str, Any], said: str
) -> None:
    client.pin_tokenizer("t1", "c1")
    ledger.submit(group("g", size=3))
    live(ledger, busy=4, engines=(used("http://a", READY, 4),))
    live(ledger, "v", busy=4, **wrong)
    found = holdup(internals(client).reader)
    assert found.startswith(f"run r: {said}") and "play other runs" in found
    assert "would help" not in found

    ledger.claim("r/g/0", worker="w", token="t", tokenizer_hash="t1", template_hash="c1")
    found = holdup(internals(client).reader)
    assert found.startswith(f"run r: {said}") and "2 queued, 1 being played" in found
    assert "would help" not in found


def test_a_worker_that_is_frozen_beside_others(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.submit(group("g", size=3))
    claim(ledger, "r/g/0")
    live(ledger, busy=4)
    live(ledger, "v", busy=4)
    found = [
        replace(worker, age_s=9.0 * (worker.name == "v")) for worker in live_workers(ledger.redis)
    ]
    monkeypatch.setattr(fleet, "live_workers", lambda connection: found)
    said = holdup(internals(client).reader)
    assert (
        said.startswith("run r: Nothing was heard of v for 9 s: look whether it is frozen")
        and "help" not in said
    )


def test_jobs_that_fail_again_and_again_say_why(client: Client, ledger: Ledger) -> None:
    ledger.submit(group("g", size=3))
    live(ledger, busy=1)
    reason = "user endpoint 'local' answered 429\x1b[31m \u202e" + "x" * 1000 + "\nTraceback"
    for lease in [claim(ledger, f"r/g/{n}") for n in (0, 1)]:
        ledger.fail(lease.job.id, lease.lease, FailureClass.USER, reason)
    said = holdup(internals(client).reader)
    assert "Of 3 jobs that were looked at, 2 have failed before, r/g/" in said
    assert (
        "by user: user endpoint 'local' answered 429\\x1b[31m \\u202exxx" in said
        and len(said) < 400
    )
    assert said.endswith("xxx.... `rollq stats --late --run r` shows others")
    claim(ledger, "r/g/2")  # what is played counts, if anything is
    assert "have failed before" not in holdup(internals(client).reader)


def test_a_run_of_which_only_dead_jobs_are_left(client: Client, ledger: Ledger) -> None:
    ledger.submit(group("a", size=1))
    held = claim(ledger, "r/a/0")
    ledger.fail(held.job.id, held.lease, FailureClass.JOB, "no such task", final=True)
    said = holdup(internals(client).reader)
    assert said.startswith(
        "run r: nothing is pending, and 1 job is dead: see `rollq jobs list r`; "
        "`rollq jobs requeue`"
    )
    ledger.submit(group("e", purpose=Purpose.EVAL))
    live(ledger)
    assert "nothing is pending" not in holdup(internals(client).reader)


def test_the_problem_of_either_purpose_comes_first(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    ledger.submit(group("e", purpose=Purpose.EVAL))
    assert "no worker is alive" in holdup(internals(client).reader)
    assert "1 group is ready" in holdup(internals(client).reader, Purpose.TRAIN)

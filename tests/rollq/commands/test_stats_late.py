"""`rollq stats --late`: the oldest groups, their slowest members, and what each is waiting for."""

from collections.abc import Callable
from functools import partial

import pytest

from rollq.errors import FailureClass
from rollq.ledger.constants import CONFIRMED_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import AWAY, Wait
from tests.rollq.client.fleets import live
from tests.rollq.commands.conftest import Said, Says
from tests.rollq.groups import finish_groups
from tests.rollq.samples import claim, group, reader

Late = Callable[..., Said]


@pytest.fixture
def late(says: Says) -> Late:
    return partial(says, "stats", "--late", "--run", "r")


def rows(said: str) -> dict[str, str]:
    """What each job waits for."""
    lines = [line for line in said.splitlines() if line.startswith("  r/")]
    return {line.split()[0]: " ".join(line.split()[6:]) for line in lines}


def test_each_unfinished_member_says_what_it_is_waiting_for(ledger: Ledger, late: Late) -> None:
    finish_groups(ledger, "done")
    for name in ("old", "new"):
        ledger.submit(group(name, size=4))
    engine, user, gone = (claim(ledger, f"r/old/{n}") for n in range(3))
    waits = (Wait(engine.job.id, "engine", 31.0), Wait(user.job.id, "the user", 250.0))
    live(ledger, waits=waits)
    ledger.redis.hset(ledger.keys.job(gone.job.id), "worker", "killed")
    said = late("--late", "1").out
    assert "group old (train): 0 of 4 graded, open for " in said and "group new" not in said
    assert rows(said) == {
        "r/old/0": "engine for 31s",
        "r/old/1": "the user for 4.2m",
        "r/old/2": "a worker of which nothing is heard",
        "r/old/3": "queue",
    }
    assert "`rollq show JOB` shows" in said
    assert rows(late().out).keys() >= {"r/new/0"}


def test_an_engine_that_is_away_and_a_failed_job_are_named(ledger: Ledger, late: Late) -> None:
    ledger.submit(group("g", size=3))
    played, failed, quick = (claim(ledger, f"r/g/{n}") for n in range(3))
    ledger.fail(failed.job.id, failed.lease, FailureClass.USER, "no answer")
    waits = (Wait(played.job.id, "engine", 31.0),)
    live(ledger, engine=AWAY, waits=waits)
    found = rows(late().out)
    assert found[played.job.id] == "engine (away) for 31s"
    assert found[quick.job.id] == "no wait of more than 5 s"
    assert found[failed.job.id].endswith(" more after a failure")


def test_a_failed_job_says_why_and_its_message_is_no_backoff(ledger: Ledger, late: Late) -> None:
    ledger.submit(group("g", size=2))
    failed = claim(ledger, "r/g/0")
    ledger.fail(failed.job.id, failed.lease, FailureClass.ENV, "it broke\nTraceback")
    now = float(reader(ledger).scripts.now())
    # The message is at the broker.
    ledger.redis.zadd(ledger.keys.queued, {"r/g/0": now + CONFIRMED_S})
    said = late().out
    assert rows(said)["r/g/0"] == "queue"
    assert "    failed once, last by env: it broke\n" in said and "Traceback" not in said
    job = late("--json").json["late"][0]["jobs"][0]
    assert (job["failures"], job["last_failure"]) == (1, "env: it broke")


def test_as_json_and_with_nothing_open(ledger: Ledger, late: Late, says: Says) -> None:
    assert "pass --run" in says("stats", "--late", code=2).err
    assert "no run 'r'" in late(code=2).err
    finish_groups(ledger, "done")
    assert "no group is open" in late().out
    ledger.submit(group("g", size=2))
    found = late("--json").json
    assert (found["run"], len(found["late"])) == ("r", 1)
    assert found["late"][0]["open_s"] >= 0 and found["late"][0]["jobs"][1]["state"] == "queued"
    assert "no worker is alive" in found["waits"]


def test_the_name_that_a_policy_gave_a_tool_is_shown_on_its_line(
    ledger: Ledger, late: Late
) -> None:
    ledger.submit(group())
    wait = Wait(
        claim(ledger, "r/g/0").job.id, "environment.step(\x1b[2J\nrun x: all is well)", 31.0
    )
    live(ledger, waits=(wait,))
    said = late().out
    assert "\x1b" not in said and "\nrun x" not in said
    assert "environment.step(\\x1b[2J run x: all is well)" in said

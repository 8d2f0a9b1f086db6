"""`rollq stats --late`: the oldest groups, their slowest members, and what each is waiting for."""

import json
from dataclasses import replace

import pytest

from rollq import cli
from rollq.errors import FailureClass
from rollq.ledger.constants import CONFIRMED_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import AWAY, READY, LiveWorker, Wait, register
from tests.rollq.commands.conftest import Fails
from tests.rollq.groups import finish_groups
from tests.rollq.samples import claim, group, reader

WORKER = LiveWorker(name="w", queues=("rollq",), tokenizer="t1", template="c1", engine=READY, slots=4, busy=2)


def late(url: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    capsys.readouterr()
    assert cli.main(["stats", "--late", "--run", "r", "--redis", url, *more]) == 0
    return capsys.readouterr().out


def rows(said: str) -> dict[str, str]:
    """What each job waits for."""
    lines = [line for line in said.splitlines() if line.startswith("  r/")]
    return {line.split()[0]: " ".join(line.split()[6:]) for line in lines}


def test_each_unfinished_member_says_what_it_is_waiting_for(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    finish_groups(ledger, "done")
    for name in ("old", "new"):
        ledger.submit(group(name, size=4))
    engine, user, gone = (claim(ledger, f"r/old/{n}") for n in range(3))
    waits = (Wait(engine.job.id, "engine", 31.0), Wait(user.job.id, "the user", 250.0))
    register(ledger.redis, replace(WORKER, waits=waits))
    ledger.redis.hset(ledger.keys.job(gone.job.id), "worker", "killed")
    said = late(redis_url, capsys, "--late", "1")
    assert "group old (train): 0 of 4 graded, open for " in said and "group new" not in said
    assert rows(said) == {
        "r/old/0": "engine for 31s",
        "r/old/1": "the user for 4.2m",
        "r/old/2": "nothing is heard of its worker: unless it renews its lease, the job goes back to the queue within"
        " 15 s",
        "r/old/3": "queue",
    }
    assert "`rollq show JOB` shows" in said
    assert rows(late(redis_url, capsys)).keys() >= {"r/new/0"}


def test_an_engine_that_is_away_and_a_failed_job_are_named(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.submit(group("g", size=3))
    played, failed, quick = (claim(ledger, f"r/g/{n}") for n in range(3))
    ledger.fail(failed.job.id, failed.lease, FailureClass.USER, "no answer")
    waits = (Wait(played.job.id, "engine", 31.0),)
    register(ledger.redis, replace(WORKER, engine=AWAY, waits=waits))
    found = rows(late(redis_url, capsys))
    assert found[played.job.id] == "engine (away) for 31s"
    assert found[quick.job.id] == "no wait of more than 5 s"
    assert found[failed.job.id].startswith("queue, not before ") and "after a failure" in found[failed.job.id]


def test_a_failed_job_says_why_and_its_message_is_no_backoff(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.submit(group("g", size=2))
    failed = claim(ledger, "r/g/0")
    ledger.fail(failed.job.id, failed.lease, FailureClass.ENV, "it broke\nTraceback")
    now = float(reader(ledger).scripts.now())
    ledger.redis.zadd(ledger.keys.queued, {"r/g/0": now + CONFIRMED_S})  # the message is at the broker
    said = late(redis_url, capsys)
    assert rows(said)["r/g/0"] == "queue"
    assert "    failed once, last by env: it broke\n" in said and "Traceback" not in said
    job = json.loads(late(redis_url, capsys, "--json"))["late"][0]["jobs"][0]
    assert (job["failures"], job["last_failure"]) == (1, "env: it broke")


def test_as_json_and_with_nothing_open(
    redis_url: str, ledger: Ledger, fails: Fails, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "pass --run" in fails("stats", "--late", "--redis", redis_url)
    assert "no run 'r'" in fails("stats", "--late", "--run", "r", "--redis", redis_url)
    finish_groups(ledger, "done")
    assert "no group is open" in late(redis_url, capsys)
    ledger.submit(group("g", size=2))
    ledger.redis.hdel(ledger.keys.group("g"), "at")  # as an older rollq submitted it
    found = json.loads(late(redis_url, capsys, "--json"))
    assert (found["run"], len(found["late"])) == ("r", 1)
    assert (found["late"][0]["open_s"], found["late"][0]["jobs"][1]["state"]) == (None, "queued")
    assert "no worker is alive" in found["waits"]

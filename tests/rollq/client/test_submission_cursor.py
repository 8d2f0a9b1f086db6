"""A producer that is started again: it goes on where it was, sends nothing twice, and notices another source."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rollq import cli
from rollq.client.client import Client
from rollq.errors import JobConflict
from rollq.job import Job
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Cursor
from tests.rollq.samples import group, job, play

NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, run="r", broker_url=NOBODY) as connected:
        yield connected


def tasks(count: int, **changes: object) -> Iterator[Job]:
    for task in range(count):
        yield job(0, f"g{task}", task=task, **changes)


def scripts_called(ledger: Ledger) -> int:
    stats = ledger.redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_a_restart_skips_what_was_entered(client: Client, ledger: Ledger) -> None:
    client.submit(itertools.islice(tasks(9), 5), source="s")
    before = scripts_called(ledger)
    done = client.submit(tasks(9), source="s")
    assert scripts_called(ledger) - before <= 1 + 2 * 4  # the cursor, and four groups
    assert (len(done.known), len(done.new)) == (10, 8)
    assert done.known[:2] == ["r/g0/0", "r/g0/1"]
    assert client.stats()["submitted"] == 18
    assert client.stats()["resubmitted"] == 10
    assert client.submit(tasks(9), source="s").new == []
    assert client.submit(tasks(9)).new == []  # without a source each is sent, and known


def test_sources_do_not_know_of_each_other(client: Client) -> None:
    client.submit(tasks(4), source="s")
    done = client.submit(tasks(6), source="t")
    assert (len(done.known), len(done.new)) == (8, 4)


def test_skipped_groups_need_no_room(client: Client) -> None:
    client.submit(tasks(4), source="s")
    assert len(client.submit(tasks(4), source="s", ahead=1).known) == 8  # it would wait for ever


@pytest.mark.parametrize("other", ["content", "sample", "fewer", "order"])
def test_another_source_under_the_name_is_a_conflict(client: Client, other: str) -> None:
    client.submit(tasks(4), source="s")
    match other:
        case "content":
            jobs = list(tasks(4, seed=1))
        case "sample":
            jobs = [*tasks(3), job(0, "g3", task=3), job(1, "g3", task=3, seed=1)]
        case "fewer":
            jobs = list(tasks(3))
        case _:
            jobs = list(tasks(4))[::-1]
    with pytest.raises(JobConflict, match=r"source s .*use another run"):
        client.submit(jobs, source="s")
    assert client.stats()["submitted"] == 8


def test_how_a_group_is_written_does_not_matter(client: Client) -> None:
    client.submit(tasks(2), source="s")
    written_out = [member for task in range(3) for member in group(f"g{task}", task=task)]
    assert client.submit(written_out, source="s").new == ["r/g2/0", "r/g2/1"]


def test_the_cursor_never_goes_back(ledger: Ledger) -> None:
    ledger.submit(group("a"), source="s", cursor=Cursor(1, 2, "aa"))
    ledger.submit(group("b"), source="s", cursor=Cursor(2, 4, "bb"))
    ledger.submit(group("a"), source="s", cursor=Cursor(1, 2, "aa"))  # a second producer, behind the first
    assert ledger.cursor("s") == Cursor(2, 4, "bb")
    assert ledger.cursor("t") == Cursor()
    ledger.redis.hset(ledger.keys.sources, "s", "garbage")
    assert ledger.cursor("s") == Cursor()  # and everything is sent again


def test_it_goes_with_the_run(client: Client, ledger: Ledger) -> None:
    client.submit(tasks(2), source="s")
    DeadLetters(ledger.redis, "r").forget_run()
    assert len(client.submit(tasks(2), source="s").new) == 4


SUBMIT = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-399", "--size", "2", "--ahead", "1000"]


def test_a_producer_that_is_killed_again_and_again(redis_url: str, ledger: Ledger) -> None:
    line = [sys.executable, "-m", "rollq", *SUBMIT, "--redis", redis_url, "--broker", NOBODY]
    for round_ in range(1, 4):
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as producer:
            while ledger.stats()["submitted"] < 200 * round_ and producer.poll() is None:
                time.sleep(random.uniform(0, 0.01))
            if producer.poll() is None:
                os.kill(producer.pid, signal.SIGKILL)
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    stats = ledger.stats()
    assert (stats["submitted"], stats["queued"], stats["groups_open"]) == (800, 800, 400)
    for sample in range(2):
        play(ledger, f"r/shop.train.399/{sample}")


def test_another_line_for_the_same_tasks_is_a_conflict(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["submit", "--run", "r", "--env", "shop", "--size", "2", "--redis", redis_url]
    assert cli.main([*base, "--tasks", "0-3"]) == 0
    assert cli.main([*base, "--tasks", "0-5"]) == 0  # more tasks are none
    assert "4 jobs submitted, 8 known" in capsys.readouterr().out
    assert cli.main([*base, "--tasks", "0-5", "--max-turns", "3"]) == 1
    assert "submitted before with other content: submit it as before, or use another run" in capsys.readouterr().err


def test_budgets_on_the_line(redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-3", "--redis", redis_url]
    for wrong in ("engine", "engine=0", "fun=3", "env=2,env=3", "cancelled=2"):
        assert cli.main([*base, "--budget", wrong]) == 2
        assert "expected CLASS=N" in capsys.readouterr().err
    assert cli.main([*base, "--budget", "engine=8, env=3"]) == 0
    assert cli.main([*base, "--budget", "engine=8"]) == 0
    assert cli.main(base) == 0
    assert ledger.redis.hget(ledger.keys.meta, "budget:env") == b"3"
    capsys.readouterr()
    assert cli.main([*base, "--budget", "engine=9"]) == 2
    assert "run r has a budget of 8 failures of class engine, not 9" in capsys.readouterr().err

"""`rollq eval`: what it stores, prints again and compares."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from rollq import cli
from rollq.job import Purpose
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq.wire.events import encode_event
from tests.rollq.commands.conftest import Fails
from tests.rollq.groups import ack, take
from tests.rollq.samples import closed, play

REWARDS = {0: [1.0, 0.0], 1: [1.0, 1.0], 2: [0.0, 0.0]}


@pytest.fixture
def line(redis_url: str) -> Sequence[str]:
    return ("--redis", redis_url, "--env", "shop", "--tasks", "0-2", "--size", "2")


@pytest.fixture
def connection(redis_url: str) -> Iterator["redis.Redis"]:
    client = connect(redis_url)
    yield client
    client.close()


def evaluated(
    connection: "redis.Redis", line: Sequence[str], run: str, rewards: Mapping[int, Sequence[float]]
) -> Ledger:
    """A run of which all tries are played."""
    assert cli.main(["eval", "--run", run, *line, "--timeout", "0"]) == 1
    ledger = Ledger(connection, run)
    for task, tries in rewards.items():
        for sample, reward in enumerate(tries):
            play(ledger, f"{run}/shop.test.{task}/{sample}", reward)
    return ledger


def json_of(capsys: pytest.CaptureFixture[str], *line: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["eval", *line, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**found, "wall_s": 0}


def test_the_same_line_prints_the_result_again(
    connection: "redis.Redis", line: Sequence[str], redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = evaluated(connection, line, "e", REWARDS)
    out = str(tmp_path / "e.jsonl")
    first = json_of(capsys, "--run", "e", *line, "--out", out)
    assert (first["reward_mean"], first["pass_hat_k"]) == (0.5, {"1": 0.5, "2": 1 / 3})
    assert [task["task"] for task in first["per_task"]] == [2, 0, 1]
    assert ledger.redis.exists("rollq:{e}:acked:shop.test.0") == 1
    assert json_of(capsys, "--run", "e", *line) == first
    assert json_of(capsys, "--show", "e", "--redis", redis_url) == first


def test_failures_come_with_the_line_that_shows_them(
    connection: "redis.Redis", line: Sequence[str], redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(connection, line, "e", REWARDS)
    assert cli.main(["eval", "--run", "e", *line]) == 0
    text = capsys.readouterr().out
    assert "3 of 6 tries failed:\nrollq show e/shop.test.2/0  # reward 0, done" in text
    assert cli.main(["show", "e/shop.test.2/0", "--redis", redis_url]) == 0  # nothing was acknowledged
    out = tmp_path / "e.jsonl"
    assert cli.main(["eval", "--run", "e", *line, "--out", str(out)]) == 0
    shown = next(text for text in capsys.readouterr().out.splitlines() if text.startswith(f"rollq show {out}"))
    number = int(shown.split()[2].rpartition(":")[2])
    assert json.loads(out.read_text().splitlines()[number - 1])["job"] == "e/shop.test.2/0"
    assert cli.main(["eval", "--show", "e", "--redis", redis_url]) == 0
    assert "e/shop.test.2/0 (its trajectory has left Redis)" in capsys.readouterr().out


def test_it_says_how_to_free_what_stays_in_redis(
    connection: "redis.Redis", line: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(connection, line, "e", REWARDS)
    assert cli.main(["eval", "--run", "e", *line]) == 0
    assert "3 groups stay in Redis" in capsys.readouterr().err
    assert cli.main(["eval", "--run", "e", *line, "--out", str(tmp_path / "e.jsonl")]) == 0
    assert cli.main(["eval", "--run", "e", *line]) == 0
    assert "stay in Redis" not in capsys.readouterr().err


def test_two_runs_are_compared_task_by_task(
    connection: "redis.Redis", line: Sequence[str], redis_url: str, capsys: pytest.CaptureFixture[str], fails: Fails
) -> None:
    evaluated(connection, line, "old", REWARDS)
    assert cli.main(["eval", "--run", "old", *line]) == 0
    evaluated(connection, line, "new", {0: [1.0, 1.0], 1: [1.0, 0.0], 2: [1.0, 0.0]})
    found = json_of(capsys, "--run", "new", *line, "--compare", "old")["comparison"]
    assert found["reward"]["mean"] == pytest.approx(0.5 / 3)
    assert found["reward"]["stderr"] == pytest.approx(1 / 3)  # of 0.5, -0.5 and 0.5
    assert [change["task"] for change in found["worse"]] == ["shop/test/1"]
    assert cli.main(["eval", "--show", "new", "--compare", "old", "--redis", redis_url]) == 0
    assert "2 tasks better, 1 worse" in capsys.readouterr().out
    other = ["--redis", redis_url, "--env", "shop", "--tasks", "1-2", "--size", "2"]
    evaluated(connection, other, "few", {1: [1.0, 1.0], 2: [1.0, 1.0]})
    assert cli.main(["eval", "--run", "few", *other]) == 0
    said = fails("eval", "--show", "few", "--compare", "old", "--redis", redis_url)
    assert "their graded tasks differ. Only in old: shop/test/0." in said


def test_other_tasks_are_refused_before_they_are_played(
    connection: "redis.Redis", line: Sequence[str], redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(connection, line, "e", REWARDS)
    assert cli.main(["eval", "--run", "e", *line]) == 0
    more = ["--redis", redis_url, "--env", "shop", "--tasks", "0-3", "--size", "2"]
    assert cli.main(["eval", "--run", "e", *more]) == 2
    assert "the evaluation of run e has other tasks or tries: 3 tasks with 2 tries" in capsys.readouterr().err
    assert cli.main(["eval", "--run", "f", *more, "--compare", "e"]) == 2
    assert "their graded tasks differ. Only in f: shop/test/3." in capsys.readouterr().err
    assert not list(connection.scan_iter("rollq:{f}:*"))
    assert not connection.exists("rollq:{e}:group:shop.test.3")


def test_a_dead_try_costs_the_comparison_and_not_the_report(
    connection: "redis.Redis", line: Sequence[str], redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(connection, line, "old", REWARDS)
    assert cli.main(["eval", "--run", "old", *line]) == 0
    evaluated(connection, line, "new", {0: [1.0, 1.0], 1: [1.0, 0.0], 2: [1.0]})
    assert cli.main(["jobs", "cancel", "new/shop.test.2/1", "--redis", redis_url]) == 0
    capsys.readouterr()
    assert cli.main(["eval", "--run", "new", *line, "--compare", "old"]) == 1
    said = capsys.readouterr()
    assert "reward   mean 0.750" in said.out and "compare" not in said.out
    assert "2 of 6 tries are missing, and their tasks are left out, so nothing is compared" in said.err


def test_a_try_that_cannot_be_read_is_a_dead_letter(
    connection: "redis.Redis", line: Sequence[str], redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = evaluated(connection, line, "e", REWARDS)
    connection.lset(ledger.keys.journal("e/shop.test.1/1"), 2, b"junk")
    found = json_of(capsys, "--run", "e", *line, code=1)
    assert (found["left_out"], found["dead"], found["done"]) == (["shop.test.1"], 1, 4)
    assert cli.main(["jobs", "requeue", "e", "--redis", redis_url]) == 0
    play(ledger, "e/shop.test.1/1", 1.0)
    assert json_of(capsys, "--run", "e", *line)["done"] == 6


def test_a_try_that_cannot_be_written_down_is_a_dead_letter(
    connection: "redis.Redis", line: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = evaluated(connection, line, "e", REWARDS)
    no_json = replace(closed(), info={"score": math.nan})
    connection.lset(ledger.keys.journal("e/shop.test.1/1"), -1, encode_event(no_json, "e/shop.test.1/1"))
    found = json_of(capsys, "--run", "e", *line, "--out", str(tmp_path / "e.jsonl"), code=1)
    assert (found["left_out"], found["dead"], found["done"]) == (["shop.test.1"], 1, 4)


def test_what_is_not_stored_names_what_is(
    connection: "redis.Redis", line: Sequence[str], redis_url: str, capsys: pytest.CaptureFixture[str], fails: Fails
) -> None:
    evaluated(connection, line, "e", REWARDS)
    assert "run e has no evaluation; it has none that is finished" in fails("eval", "--show", "e", "--redis", redis_url)
    assert cli.main(["eval", "--run", "e", *line]) == 0
    assert "run e has no evaluation '7'; it has e" in fails("eval", "--show", "e@7", "--redis", redis_url)
    assert "no run 'x'" in fails("eval", "--show", "x", "--redis", redis_url)
    assert cli.main(["eval", "--run", "f", *line, "--compare", "x"]) == 2
    assert "run x has no evaluation; it has none" in capsys.readouterr().err
    assert Ledger(connection, "f").redis.exists("rollq:{f}:run") == 0  # nothing was submitted


def test_groups_that_were_pulled_away_are_an_error(
    connection: "redis.Redis", line: Sequence[str], capsys: pytest.CaptureFixture[str], fails: Fails
) -> None:
    ledger = evaluated(connection, line, "e", REWARDS)
    take(ledger, 1, "other/0", purpose=Purpose.EVAL)
    ack(ledger, "other/0")
    assert cli.main(["eval", "--run", "e", *line]) == 1
    assert "was acknowledged before this evaluation had read it" in capsys.readouterr().err

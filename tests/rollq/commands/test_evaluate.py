"""`rollq eval`: what it stores, prints again and compares."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rollq import Client, Job
from rollq.ledger.ledger import Ledger
from rollq.wire.events import encode_event
from tests.rollq.commands.conftest import Says
from tests.rollq.groups import play_when_submitted
from tests.rollq.samples import closed, play

REWARDS = {0: [1.0, 0.0], 1: [1.0, 1.0], 2: [0.0, 0.0]}
LINE = ("--env", "shop", "--tasks", "0-2", "--size", "2")
Evaluated = Callable[..., Ledger]


@pytest.fixture
def evaluated(ledger: Ledger, says: Says) -> Evaluated:
    """Submits an evaluation and plays its tries."""

    def play_all(run: str, rewards: Mapping[int, Sequence[float]] = REWARDS) -> Ledger:
        says("eval", "--run", run, *LINE, "--timeout", "0", code=1)
        of_run = Ledger(ledger.redis, run)
        for task, tries in rewards.items():
            for sample, reward in enumerate(tries):
                play(of_run, f"{run}/shop.test.{task}/{sample}", reward)
        return of_run

    return play_all


def test_the_same_line_prints_the_result_again(
    evaluated: Evaluated, says: Says, tmp_path: Path
) -> None:
    ledger = evaluated("e")
    line = ("eval", "--run", "e", *LINE)
    first = says(*line, "--out", str(tmp_path / "e.jsonl"), "--json").json | {"wall_s": 0}
    assert (first["reward_mean"], first["pass_hat_k"]) == (0.5, {"1": 0.5, "2": 1 / 3})
    assert [task["task"] for task in first["per_task"]] == [2, 0, 1]
    assert ledger.redis.exists("rollq:{e}:acked:shop.test.0") == 1
    assert says(*line, "--json").json | {"wall_s": 0} == first
    assert says("eval", "--show", "e", "--json").json | {"wall_s": 0} == first


def test_failures_come_with_the_line_that_shows_them(
    evaluated: Evaluated, says: Says, tmp_path: Path
) -> None:
    evaluated("e")
    line = ("eval", "--run", "e", *LINE)
    assert "3 of 6 tries failed:\nrollq show e/shop.test.2/0  # reward 0, done" in says(*line).out
    says("show", "e/shop.test.2/0")  # nothing was acknowledged
    out = tmp_path / "e.jsonl"
    said = says(*line, "--out", str(out)).out
    shown = next(text for text in said.splitlines() if text.startswith(f"rollq show {out}"))
    number = int(shown.split()[2].rpartition(":")[2])
    assert json.loads(out.read_text().splitlines()[number - 1])["job"] == "e/shop.test.2/0"
    assert "e/shop.test.2/0 (its trajectory has left Redis)" in says("eval", "--show", "e").out


def test_it_says_how_to_free_what_stays_in_redis(
    evaluated: Evaluated, says: Says, tmp_path: Path
) -> None:
    evaluated("e")
    line = ("eval", "--run", "e", *LINE)
    assert "3 groups stay in Redis" in says(*line).err
    says(*line, "--out", str(tmp_path / "e.jsonl"))
    assert "stay in Redis" not in says(*line).err


def test_two_runs_are_compared_task_by_task(evaluated: Evaluated, says: Says) -> None:
    evaluated("old")
    says("eval", "--run", "old", *LINE)
    evaluated("new", {0: [1.0, 1.0], 1: [1.0, 0.0], 2: [1.0, 0.0]})
    found = says("eval", "--run", "new", *LINE, "--compare", "old", "--json").json["comparison"]
    assert found["reward"]["mean"] == pytest.approx(0.5 / 3)
    assert found["reward"]["stderr"] == pytest.approx(1 / 3)  # of 0.5, -0.5 and 0.5
    assert [change["task"] for change in found["worse"]] == ["shop/test/1"]
    assert "2 tasks better, 1 worse" in says("eval", "--show", "new", "--compare", "old").out


def test_other_tasks_are_refused_before_they_are_played(evaluated: Evaluated, says: Says) -> None:
    redis = evaluated("e").redis
    says("eval", "--run", "e", *LINE)
    more = ("--env", "shop", "--tasks", "0-3", "--size", "2")
    said = says("eval", "--run", "f", *more, "--compare", "e", code=2).err
    assert "their graded tasks differ. Only in f: shop/test/3." in said
    assert not list(redis.scan_iter("rollq:{f}:*"))


def test_a_dead_try_costs_the_comparison_and_not_the_report(
    evaluated: Evaluated, says: Says
) -> None:
    evaluated("old")
    says("eval", "--run", "old", *LINE)
    evaluated("new", {0: [1.0, 1.0], 1: [1.0, 0.0], 2: [1.0]})
    says("jobs", "cancel", "new/shop.test.2/1")
    said = says("eval", "--run", "new", *LINE, "--compare", "old", code=1)
    assert "reward   mean 0.750" in said.out and "compare" not in said.out
    assert (
        "2 of 6 tries are missing, and their tasks are left out, so nothing is compared" in said.err
    )
    assert "to play them again: rollq jobs requeue new, then repeat this line" in said.err
    says("jobs", "drop", "new")
    said = says("eval", "--run", "new", *LINE, code=1)
    assert "their dead jobs were dropped: evaluate these tasks in another run" in said.err
    assert "requeue" not in said.err


def test_a_try_that_cannot_be_read_is_a_dead_letter(evaluated: Evaluated, says: Says) -> None:
    ledger, line = evaluated("e"), ("eval", "--run", "e", *LINE, "--json")
    ledger.redis.lset(ledger.keys.journal("e/shop.test.1/1"), 2, b"junk")
    found = says(*line, code=1).json
    assert (found["left_out"], found["dead"], found["done"]) == (["shop.test.1"], 1, 4)
    says("jobs", "requeue", "e")
    play(ledger, "e/shop.test.1/1", 1.0)
    assert says(*line).json["done"] == 6


def test_a_try_that_cannot_be_written_down_is_a_dead_letter(
    evaluated: Evaluated, says: Says, tmp_path: Path
) -> None:
    ledger = evaluated("e")
    no_json = replace(closed(), info={"score": math.nan})
    ledger.redis.lset(
        ledger.keys.journal("e/shop.test.1/1"), -1, encode_event(no_json, "e/shop.test.1/1")
    )
    found = says(
        "eval", "--run", "e", *LINE, "--out", str(tmp_path / "e.jsonl"), "--json", code=1
    ).json
    assert (found["left_out"], found["dead"], found["done"]) == (["shop.test.1"], 1, 4)


def test_the_evaluations_of_a_trainer_are_a_series(
    ledger: Ledger, client: Client, says: Says
) -> None:
    for step, reward in ((0, 0.0), (10, 1.0)):
        client.publish(step)
        evaluation = client.evaluate([Job(env="shop", task=0)], 1)
        play_when_submitted(ledger, {f"eval.{step}.shop.train.0": [reward]}, str(step))
        evaluation.result(60)
    first, last = says("eval", "--show", "r", "--compare", "r@0").out.splitlines()[1:]
    assert first.endswith("-") and last.endswith("+1.000")
    found = says("eval", "--show", "r", "--json").json
    assert [(each["step"], each["reward_mean"]) for each in found["evaluations"]] == [
        (0, 0.0),
        (10, 1.0),
    ]
    assert says("eval", "--show", "r@10", "--json").json["reward_mean"] == 1.0


def test_what_is_not_stored_names_what_is(evaluated: Evaluated, says: Says) -> None:
    redis = evaluated("e").redis
    assert (
        "run e has no evaluation; it has none that is finished"
        in says("eval", "--show", "e", code=2).err
    )
    says("eval", "--run", "e", *LINE)
    assert "run e has no evaluation '7'; it has e" in says("eval", "--show", "e@7", code=2).err
    assert "no run 'x'" in says("eval", "--show", "x", code=2).err
    said = says("eval", "--run", "f", *LINE, "--compare", "x", code=2).err
    assert "run x has no evaluation; it has none" in said
    assert redis.exists("rollq:{f}:run") == 0  # nothing was submitted

"""What a result says of its tasks, and how it is kept."""

import json
import random
from dataclasses import replace

import pytest

from rollq.errors import ContractError, LedgerError, SettingsError, UnknownSchema
from rollq.evaluation.comparison import Change, compare
from rollq.evaluation.report import (
    as_json,
    comparison_json,
    comparison_lines,
    failure_lines,
    summary_lines,
    task_table,
)
from rollq.evaluation.result import task_result
from rollq.evaluation.statistics import estimate
from rollq.ledger.evaluations import EvaluationStore, decode, encode
from rollq.ledger.ledger import Ledger
from tests.rollq.evaluation.results import result_of, task_of
from tests.rollq.export.trajectories import played

MIXED = result_of({0: [1, 1, 1, 1], 1: [1, 0, 1, 0], 2: [0, 0, 0, 1]})


def test_pass_hat_k_is_the_mean_over_tasks() -> None:
    """Tasks with 4, 2 and 1 successes of 4: C(c, k) / C(4, k) is 1, 1/6 and 0 at k = 2."""
    found = MIXED.pass_hat_k
    assert [found[k].mean for k in found] == pytest.approx([7 / 12, (1 + 1 / 6) / 3, 1 / 3, 1 / 3])
    assert found[2] == estimate([1.0, 1 / 6, 0.0])
    assert MIXED.reward == estimate([1.0, 0.5, 0.25])


def test_trajectories_become_a_task_result() -> None:
    found = task_result([played(3, 0, 1.0), played(3, 1, 0.0)])
    assert (found.key, found.group, found.versions) == (("shop", "train", 3), "g3", {"1": 4})
    assert found.tries[1] == (0.0, "done", 1, 2, 6)


def test_failures_are_listed_from_the_worst_task_on() -> None:
    assert [failure.job for failure in MIXED.failures] == [
        *(f"e/shop.test.2/{sample}" for sample in (0, 1, 2)),
        *(f"e/shop.test.1/{sample}" for sample in (1, 3)),
    ]


def test_tokens_of_other_versions_flag_a_mixed_result() -> None:
    tasks = [task_of(0, [1.0], {"7": 30}), task_of(1, [1.0], {"7": 10, "8": 5})]
    mixed = replace(MIXED, tasks=tasks, size=1, version="7")
    assert mixed.other_versions == {"8": 5}
    assert replace(mixed, version=None).other_versions == {}
    [line] = [line for line in summary_lines(mixed) if "weights" in line]
    assert (
        line
        == "weights  mixed: 40 tokens of 7, 5 tokens of 8; it is meant to be an evaluation of 7"
    )


def test_json_has_all_numbers() -> None:
    found = json.loads(json.dumps(as_json(replace(MIXED, left_out=["shop.test.9"], dead=1))))
    assert (found["tasks"], found["submitted"], found["done"], found["dead"]) == (4, 16, 12, 1)
    assert found["reward_mean"] == pytest.approx(7 / 12)
    assert found["pass_hat_k"]["2"] == pytest.approx(7 / 18)
    assert found["pass_hat_k_interval"]["2"][0] <= 7 / 18 <= found["pass_hat_k_interval"]["2"][1]
    assert [task["task"] for task in found["per_task"]] == [2, 1, 0]
    assert found["per_task"][0]["rewards"] == [0, 0, 0, 1]
    assert len(found["failures"]) == 5
    assert as_json(result_of({}))["reward_mean"] is None


def test_the_table_has_the_worst_task_first_and_the_commands_that_show_failures() -> None:
    assert [line.split()[0] for line in task_table(MIXED)] == [
        "task",
        "shop/test/2",
        "shop/test/1",
        "shop/test/0",
    ]
    lines = failure_lines(MIXED, lambda job: f"rollq show {job}")
    assert lines[:2] == ["5 of 12 tries failed:", "rollq show e/shop.test.2/0  # reward 0, turns"]
    many = result_of({task: [0.0] for task in range(30)})
    assert task_table(many)[-1] == "and 10 more, which are no worse"
    assert failure_lines(many, str)[0] == "30 of 30 tries failed; the worst 20:"
    assert (task_table(result_of({})), failure_lines(result_of({0: [1.0]}), str)) == ([], [])


def test_a_comparison_is_paired_by_task() -> None:
    before = result_of({2: [1, 1], 0: [1, 0], 1: [0, 0]}, run="old")
    found = compare(result_of({0: [1, 1], 1: [0, 0], 2: [0, 1]}), before, "old")
    assert found.reward == estimate([0.5, 0.0, -0.5])
    assert found.pass_hat_k[2] == estimate([1.0, 0.0, -1.0])
    assert found.better == [Change("shop/test/0", 0.5, 1.0)]
    assert found.worse == [Change("shop/test/2", 1.0, 0.5)]
    assert "worse    shop/test/2  1.000 -> 0.500" in comparison_lines(found)
    assert json.loads(json.dumps(comparison_json(found)))["better"][0]["task"] == "shop/test/0"


def test_other_tasks_cannot_be_compared() -> None:
    with pytest.raises(
        SettingsError, match=r"Only in e: shop/test/1\.Only in old: shop/test/2, shop/test/3\. "
    ):
        compare(result_of({0: [1], 1: [1]}), result_of({0: [1], 2: [1], 3: [1]}, run="old"), "old")
    with pytest.raises(SettingsError, match="shop/test/4 and 3 more"):
        compare(result_of({task: [1.0] for task in range(8)}), result_of({}, run="old"), "old")


def test_a_stored_result_comes_back(ledger: Ledger) -> None:
    store = EvaluationStore(ledger.scripts)
    assert (store.names(), store.load("7")) == ([], None)
    kept = replace(MIXED, run="r", name="7", version="7", left_out=["shop.test.9"], dead=2)
    store.save(kept)
    store.save(replace(MIXED, run="r"))
    assert store.names() == ["", "7"]
    assert store.load("7") == kept
    assert store.load("") == replace(MIXED, run="r")


def test_a_result_that_cannot_be_read_names_its_run(ledger: Ledger) -> None:
    blob = encode(MIXED)
    for damaged in (b"", blob[:-3], blob + b"\0", b"\x92\x02\xa3job"):
        with pytest.raises(ContractError, match="the evaluation of run e"):
            decode(damaged, "e")
    with pytest.raises(UnknownSchema, match="the rollq that wrote it"):
        decode(b"\x93\x03" + blob[2:], "e")
    ledger.redis.set("rollq:{r}:evaluation", "text")
    with pytest.raises(LedgerError, match=r"rollq:\{r\}:evaluation"):
        EvaluationStore(ledger.scripts).load("7")


def test_a_large_result_is_small() -> None:
    """100 tasks, 8 tries each, of different lengths."""
    chance = random.Random(0)
    tasks = [task_of(task, [float(chance.random() < 0.5) for _ in range(8)]) for task in range(100)]
    tasks = [
        replace(t, tries=[one._replace(sampled_tokens=chance.randrange(5000)) for one in t.tries])
        for t in tasks
    ]
    assert len(encode(replace(MIXED, tasks=tasks))) < 10_000

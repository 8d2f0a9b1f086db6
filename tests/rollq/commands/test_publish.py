"""`rollq engines publish`, the flags of a bound on staleness, and what `stats` and `pull` tell of them."""

import json
from pathlib import Path

import pytest

from rollq import cli
from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.groups import play_groups

BOUND = ("--set", "groups_per_batch=4", "--set", "max_staleness=1")


def said(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert cli.main(list(line)) == 0
    return capsys.readouterr().out


def test_a_bounded_run_from_submit_to_pull(redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    redis = ("--redis", redis_url)
    said(capsys, *SUBMIT, *BOUND, "--set", "max_running=5", *redis)
    line = ("stats", "--run", "r", *redis)
    bound = "max staleness 1   4 groups a batch, 5 running   0 trained   capacity 1\n"
    assert f"policy    none published   {bound}" in said(capsys, *line)
    play_groups(ledger, *(f"shop.train.{task}" for task in range(4)), size=1)
    published = said(capsys, "engines", "publish", "--run", "r", "--step", "1", "--version", "one", *redis)
    assert published == "run r: step 1 is published as version one, 4 more groups may enter\n"
    assert "policy    step 1, version one   max staleness 1" in said(capsys, *line)
    counts = json.loads(said(capsys, *line, "--json"))
    assert counts["policy"] == {"step": 1, "weight_version": "one"}
    assert counts["admission"]["capacity"] == 4
    pulled = said(capsys, "pull", "--run", "r", "--groups", "4", "--timeout", "9", *redis)
    assert "4 groups, 4 trajectories" in pulled and "staleness 0 at most" in pulled


def test_a_pull_tells_the_staleness(redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    redis = ("--redis", redis_url)
    said(capsys, *SUBMIT, *redis)
    said(capsys, "engines", "publish", "--run", "r", "--step", "3", *redis)
    play_groups(ledger, "shop.train.0", "shop.train.1", size=1)  # version 1 samples their tokens
    line = ("pull", "--run", "r", "--groups", "1", *redis)
    assert ", staleness 2 at most\n" in said(capsys, *line)
    assert json.loads(said(capsys, *line, "--json"))["staleness_max"] == 2


def test_a_run_without_steps_has_no_staleness(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, *SUBMIT, "--redis", redis_url)
    play_groups(ledger, "shop.train.0", size=1)
    assert "staleness" not in said(capsys, "pull", "--run", "r", "--groups", "1", "--redis", redis_url)
    assert "policy" not in said(capsys, "stats", "--run", "r", "--redis", redis_url)


def test_a_run_file_has_the_bound(redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text('run = "r"\nenv = "shop"\ntasks = "0-3"\ngroups_per_batch = 4\nmax_staleness = 0\n')
    said(capsys, "submit", "--config", str(file), "--redis", redis_url)
    assert "max staleness 0   4 groups a batch" in said(capsys, "stats", "--run", "r", "--redis", redis_url)


def test_the_flags_of_the_bound_go_together(redis_url: str, fails: Fails) -> None:
    redis = ("--redis", redis_url)
    assert "groups_per_batch and max_staleness go together" in fails(*SUBMIT, "--set", "max_staleness=1", *redis)
    assert "groups_per_batch and max_staleness go together" in fails(*SUBMIT, "--set", "groups_per_batch=1", *redis)
    assert "max_running needs groups_per_batch" in fails(*SUBMIT, "--set", "max_running=1", *redis)


def test_another_bound_is_refused(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *SUBMIT, *BOUND, "--redis", redis_url)
    assert cli.main([*SUBMIT, "--set", "groups_per_batch=4", "--set", "max_staleness=0", "--redis", redis_url]) == 2
    assert "admission is pinned for the run" in capsys.readouterr().err


def test_publishing_to_no_run_is_an_error(redis_url: str, fails: Fails) -> None:
    assert "no run 'r'" in fails("engines", "publish", "--run", "r", "--step", "1", "--redis", redis_url)

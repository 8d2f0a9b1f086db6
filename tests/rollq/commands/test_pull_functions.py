"""`rollq pull` with a filter of groups and a reward function."""

import sys
from pathlib import Path

import pytest

from rollq import cli
from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Pulls
from tests.rollq.export.exported_files import jobs, lines
from tests.rollq.groups import finish_groups
from tests.rollq.samples import group, play, reader

RULES = """
def sample(trajectory):
    return float(trajectory.job.sample)
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of the user in the folder in which the command runs."""
    (tmp_path / "pull_rules.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "pull_rules", raising=False)


def test_only_groups_that_the_filter_keeps_are_written(
    ledger: Ledger, out: Path, pull: Pulls
) -> None:
    finish_groups(ledger, "a", "b")
    ledger.submit(group("c"))
    play(ledger, "r/c/0", 0.0)
    play(ledger, "r/c/1", 1.0)
    ledger.seal()
    assert (
        "2 of 3 groups are missing"
        in pull(3, "--where", "unequal_rewards", "--out", out, code=1).err
    )
    assert jobs(out) == ["r/c/0", "r/c/1"]
    assert reader(ledger).stats()["skips"] == {"unequal_rewards": 2}


@pytest.mark.usefixtures("rules")
def test_the_file_has_the_rewards_of_the_reward_function(
    ledger: Ledger, out: Path, pull: Pulls
) -> None:
    finish_groups(ledger, "a", seal=True)
    flags = ("--where", "unequal_rewards", "--reward", "pull_rules:sample", "--json")
    assert pull(1, *flags, "--out", out).json["reward_mean"] == 0.5
    written = lines(out)
    assert [line["reward"] for line in written] == [0.0, 1.0]
    assert [line["info"]["environment_reward"] for line in written] == [1.0, 1.0]
    assert cli.main(["audit", str(out), "--offline"]) == 0

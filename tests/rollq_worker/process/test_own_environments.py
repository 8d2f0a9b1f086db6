"""What a worker does with environments and rewards of users that break."""

import json
import re
from pathlib import Path

import pytest

from rollq.ledger.ledger import Ledger
from rollq_worker.environments import files
from rollq_worker.process.job_task import JobRunner
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import submit

BROKEN = """
from rollq.errors import JobFailure
from rollq_worker.environments.shop import load as load_shop

SHOP = load_shop(None)


class Broken:
    name, version, splits, task = "broken", "broken 1", SHOP.splits, SHOP.task

    def open(self, split, index, args):
        episode = SHOP.open(split, index, {})
        return {fault}(episode)


class Closes:
    def __init__(self, episode):
        self.step, self.reset, self.grade = episode.step, episode.reset, episode.grade
        self.tools, self.system_prompt = episode.tools, episode.system_prompt

    def close(self):
        raise OSError("the folder is not empty")


class Opens:
    def __init__(self, episode):
        raise JobFailure("no such level")


def load(variant):
    return Broken()
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of one test is known to the next one."""
    monkeypatch.setenv(files.FILES.variable, "")


@pytest.mark.parametrize(
    ("fault", "failure", "says"),
    [
        ("Closes", "env", r"closing broken@\w+: OSError: the folder is not empty"),
        ("Opens", "job", "no such level"),
        ("Nowhere", "env", r"opening broken@\w+: NameError: name 'Nowhere' is not defined"),
    ],
)
def test_an_environment_that_breaks_costs_its_own_attempt(
    runner: JobRunner, ledger: Ledger, tmp_path: Path, fault: str, failure: str, says: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN.replace("{fault}", fault))
    summary = runner.run(submit(ledger, env=files.add_file(str(file))))
    assert (summary["stop"], summary["failure"]) == ("failed", failure)
    state = reader(ledger).job("r/g/0")
    assert state is not None and re.search(says, state.reason), state


def test_a_task_whose_hash_is_no_text_is_not_played(
    runner: JobRunner, ledger: Ledger, tmp_path: Path
) -> None:
    file = tmp_path / "numbered.py"
    numbered = (
        "staticmethod(lambda *where: __import__('dataclasses').replace(SHOP.task(*where), hash=7))"
    )
    file.write_text(
        BROKEN.replace("SHOP.splits, SHOP.task", f"SHOP.splits, {numbered}").replace(
            "{fault}", "Closes"
        )
    )
    assert runner.run(submit(ledger, env=files.add_file(str(file))))["failure"] == "env"
    state = reader(ledger).job("r/g/0")
    assert state is not None and "the hash of its task is a int, not a string" in state.reason, (
        state
    )


@pytest.mark.parametrize(
    "returned", ["None", "'1.0'", "float('nan')", "1 / 0", "__import__('sys').exit(3)"]
)
def test_a_datasets_reward_that_is_none_is_never_0(
    runner: JobRunner, ledger: Ledger, tmp_path: Path, returned: str
) -> None:
    (tmp_path / "maths.jsonl").write_text(json.dumps({"prompt": "2+2?", "answer": "4"}))
    file = tmp_path / "maths.py"
    file.write_text(
        "from pathlib import Path\nfrom rollq_worker.environments.dataset import dataset\n"
        "load = dataset(Path(__file__).with_name('maths.jsonl'), reward=lambda answer, "
        f"row: {returned})\n"
    )
    summary = runner.run(submit(ledger, env=files.add_file(str(file))))
    assert (summary["stop"], summary["failure"], summary["then"]) == ("failed", "env", "queued")

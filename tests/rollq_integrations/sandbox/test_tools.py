"""Tools that run commands in a sandbox."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from rollq.env import Action
from rollq.errors import JobFailure
from rollq_integrations.sandbox import Bubblewrap, Limits, commands
from rollq_worker.commands.env.check import check_environment
from rollq_worker.environments.dataset import dataset
from tests import bubblewrap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


@pytest.fixture(scope="module", autouse=True)
def bwrap() -> None:
    bubblewrap.require()


def test_tools_say_how_a_command_ended() -> None:
    tools = commands("bash", "python", sandbox=partial(Bubblewrap, Limits(seconds=1)))()
    assert [schema["function"]["name"] for schema in tools.schemas] == ["bash", "python"]
    assert tools.call(Action("bash", {"command": "echo x > f"})) == ""
    assert tools.call(Action("python", {"code": "print(open('f').read())"})) == "x\n\n"
    assert tools.call(Action("bash", {"command": "echo a; exit 2"})) == "a\n\n[exit code 2]"
    assert tools.call(Action("bash", {"command": "sleep 9"})) == "[stopped: it ran longer than 1 s]"
    for wrong in ({}, {"command": 3}, {"command": "ls", "x": 1}):
        assert (
            tools.call(Action("bash", wrong))
            == "Error: bash takes one argument, command, which is a text"
        )
    assert tools.call(Action("perl", {})) == "Error: there is no tool 'perl'"
    assert len(tools.call(Action("p" * 10_000, {}))) < 200
    tools.close()


@pytest.mark.parametrize("names", [(), ("bash", "perl")])
def test_unknown_tools(names: tuple[str, ...]) -> None:
    with pytest.raises(JobFailure, match="takes the names of tools, bash and python"):
        commands(*names, sandbox=Bubblewrap)


def test_a_dataset_with_commands_is_played_and_replayed(tmp_path: Path) -> None:
    call = {"name": "python", "arguments": {"code": "print(1 + 2)"}}
    (tmp_path / "sums.jsonl").write_text(
        json.dumps({"prompt": "1+2?", "answer": 3, "calls": [call]})
    )
    domain = dataset(
        tmp_path / "sums.jsonl",
        reward="number",
        tools=commands("python", "bash", sandbox=Bubblewrap),
    )(None)
    report = check_environment(domain, "train", [0])
    assert report.rewards == [1.0] and report.problems == []

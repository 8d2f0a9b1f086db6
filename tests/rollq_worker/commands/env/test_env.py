"""`rollq env`: list, check and new."""

import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from rollq import cli
from rollq.env import RESPOND, STOP_MARKER, Action, Grade, Observation, Task
from rollq.errors import JobFailure
from rollq_worker.commands.env.check import check_environment, choose_tasks
from rollq_worker.environments import domain, files

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
SAY = Action(RESPOND, {"content": "It is 4."})
TASK = Task(
    id="t",
    hash="h",
    instruction="i",
    opening="o",
    replies=[STOP_MARKER],
    moves=[Action("add", {"n": 4}), SAY],
)


class Episode:
    """Wrong in the ways that `wrong` names."""

    tools: Any = (TOOL,)
    system_prompt: Any = "policy"
    opened = 0

    def __init__(self, wrong: str) -> None:
        type(self).opened += 1
        self.wrong, self.told = wrong, ""
        if wrong == "tools":
            self.tools = ["add"]
        if wrong == "no tools":
            self.tools = None
        if wrong == "policy":
            self.system_prompt = None

    def reset(self, user: Any) -> Any:
        self.user = user
        opening = user.open()
        return None if self.wrong == "opening" else opening

    def step(self, action: Action) -> Any:
        if action.name == RESPOND:
            self.told = action.arguments["content"]
            return Observation(self.user.reply(self.told), done=self.wrong != "endless")
        if self.wrong == "raises":
            return Observation(str(action.arguments["n"] + 1))
        if self.wrong == "text":
            return "4"
        if self.wrong == "done":
            return Observation("4", done="no")  # type: ignore[arg-type]
        if self.wrong == "numpy done":
            return Observation("4", done=numpy.bool_(False))  # type: ignore[arg-type]
        if self.wrong == "exit":
            sys.exit(3)
        if self.wrong == "random":
            return Observation(f"{self.opened}")
        return Observation(
            "4" if type(action.arguments.get("n")) is int else "Error: n must be a number"
        )

    def grade(self) -> Any:
        if self.wrong == "grade":
            return 1.0
        if self.wrong == "info":
            return Grade(1.0, [])  # type: ignore[arg-type]
        if self.wrong == "no json":
            return Grade(1.0, {"kept": 1, "right": {1, 2}})
        if self.wrong == "nan":
            return Grade(float("nan"))
        if self.wrong == "changing":
            return Grade(float(self.opened % 2))
        return Grade(float("4" in self.told and self.wrong != "unearned"))


class World:
    name, version = "world", "world 1"

    def __init__(self, wrong: str = "", **changes: Any) -> None:
        self.wrong, self.changes = wrong, changes

    def splits(self) -> dict[str, int]:
        return {"train": 3}

    def task(self, split: str, index: int) -> Any:
        if self.wrong == "task":
            return {"id": index}
        return replace(TASK, **{"id": str(index), "opening": f"o{index}", **self.changes})

    def open(self, split: str, index: int, args: Any) -> Any:
        if self.wrong == "open":
            raise OSError("no data here")
        if self.wrong == "no environment":
            return None
        return Episode(self.wrong)


def test_nothing_is_wrong() -> None:
    report = check_environment(World(), "train", range(3))
    assert (report.problems, report.notes, report.played, report.rewards) == ([], [], 3, [1.0] * 3)
    assert report.steps == 6 and report.step_s > 0


class Programs(World):
    """Each episode starts a program. After the first task, one task waits for another."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def open(self, split: str, index: int, args: Any) -> Any:
        if index > 0:
            self.both.wait(60)
        subprocess.run([sys.executable, "-c", ""], check=True)
        return super().open(split, index, args)


def test_tasks_of_an_environment_that_starts_programs_are_played_at_once() -> None:
    played: list[int] = []
    report = check_environment(
        Programs(), "train", range(3), lambda report: played.append(report.played)
    )
    assert (report.problems, report.played, played) == ([], 3, [1, 2, 3])
    assert report.episodes == 3 * 5 and report.programs_s > 0
    assert report.steps == 2  # what a turn costs, the first task tells


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("tools", "a tool schema is"),
        ("policy", "the system prompt is a NoneType"),
        ("opening", r"reset\(\) returns a NoneType, not str or Observation"),
        ("endless", "does not end within 10 turns"),
        ("raises", r"KeyError: 'n' \(\S+/test_env.py:\d+, in the call no_such_tool\({}\)\)"),
        ("text", r"step\(\) returns a str, not Observation \(in the call add\({\"n\": 4}\)\)"),
        ("random", "gave other results the second time: seed it from env_args"),
        ("grade", r"grade\(\) returns a float, not Grade"),
        ("nan", "not a finite int or float"),
        ("changing", "earn"),
        ("unearned", r"the ground truth earns 0\.0, not 1\.0"),
        ("task", "task\\(\\) returns a dict"),
        ("no tools", "environment.tools: TypeError"),
        ("no environment", r"open\(\) returned None, not an environment"),
        ("no json", r"Grade.info\['right'\] is not JSON: Object of type set"),
        ("done", "Observation.done is a str, not bool"),
        ("numpy done", r"Observation.done is a numpy.bool\w*, not bool"),
        ("info", "Grade.info is a list, not Mapping"),
        ("open", r"OSError: no data here \(\S+/test_env.py:\d+\)"),
        ("exit", r"SystemExit: 3 \(\S+/test_env.py:\d+, in the call add\({\"n\": 4}\)\)"),
    ],
)
def test_what_is_wrong_is_said(wrong: str, says: str) -> None:
    report = check_environment(World(wrong), "train", [0])
    assert len(report.problems) >= 1
    assert re.search(says, "\n".join(report.lines)), report.lines


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"opening": ""}, "Task.opening is empty"),
        ({"opening": "same"}, "task 1: it has the same opening as task 0"),
        ({"replies": ()}, "must contain"),
        ({"replies": ("Thanks.",)}, "must contain"),
        ({"hash": 7}, "Task.hash is 7, not a str"),
        ({"moves": ("add",)}, "Task.moves holds 'add'"),
        ({"moves": "add"}, "Task.moves is 'add', not a Sequence"),
    ],
)
def test_a_wrong_task(changes: dict[str, Any], says: str) -> None:
    report = check_environment(World(**changes), "train", [0, 1])
    assert any(says in line for line in report.lines), report.lines


def test_a_problem_of_several_tasks_is_one_line() -> None:
    lines = check_environment(World("raises"), "train", range(3)).lines
    assert len(lines) == 1 and lines[0].endswith("(and 2 others)")


def test_the_system_prompt_may_be_known_only_after_reset() -> None:
    class Late(Episode):
        prompt = ""

        def reset(self, user: Any) -> Any:
            self.prompt = "policy"
            return super().reset(user)

        @property
        def system_prompt(self) -> str:  # type: ignore[override]
            assert self.prompt, "reset() comes first"
            return self.prompt

    world = World()
    world.open = lambda split, index, args: Late("")  # type: ignore[method-assign]
    assert check_environment(world, "train", [0]).problems == []


def test_properties_that_are_null_are_none() -> None:
    class Bare(World):
        def open(self, split: str, index: int, args: Any) -> Any:
            episode = Episode("")
            parameters = {"type": "object", "properties": None}
            episode.tools = [
                {"type": "function", "function": {"name": "add", "parameters": parameters}}
            ]
            return episode

    assert check_environment(Bare(), "train", [0]).problems == []


def test_what_need_not_be_wrong_is_noted() -> None:
    report = check_environment(World(moves=()), "train", [0])
    assert report.problems == [] and "no task has moves" in report.notes[0]
    idle = World(moves=[SAY])
    idle.open = lambda split, index, args: Idle("")  # type: ignore[method-assign]
    assert "only talks earns a reward in 100%" in check_environment(idle, "train", [0]).notes[0]


class Idle(Episode):
    def grade(self) -> Any:
        return Grade(1.0)


@pytest.mark.parametrize(("count", "expected"), [(1, [0]), (3, [0, 1, 2]), (20, list(range(20)))])
def test_few_tasks_are_all_chosen(count: int, expected: list[int]) -> None:
    assert choose_tasks(count) == expected
    tasks = choose_tasks(500)
    assert (tasks[0], tasks[-1], len(set(tasks))) == (0, 499, 20)


def test_what_an_environment_prints_is_no_part_of_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(files.FILES.variable, "")
    (tmp_path / "loud.py").write_text(
        "from rollq_worker.environments.shop import load\nprint('loud')\n"
    )
    assert cli.main(["env", "check", str(tmp_path / "loud.py"), "--tasks", "0", "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["problems"] == [] and "loud" in said.err


@pytest.mark.parametrize("env", ["shop", "shop:desk"])
def test_the_environments_of_rollq_pass(env: str) -> None:
    assert check_environment(domain(env), "train", choose_tasks(100, 5)).problems == []


def test_a_new_environment_passes_its_own_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(files.FILES.variable, "")
    assert cli.main(["env", "new", "puns"]) == 0
    assert "rollq env check puns/puns.py" in capsys.readouterr().out
    assert "NAME" not in "".join(path.read_text() for path in Path("puns").iterdir())
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "puns",
    ]
    done = subprocess.run(line, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert cli.main(["env", "check", "puns/puns.py"]) == 0
    out = capsys.readouterr().out
    assert (
        "played 3 tasks of train: 0 problems" in out
        and "rollq demo --env puns/puns.py --set split=train" in out
    )
    assert cli.main(["env", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["shop"] == "rollq"
    [name] = [name for name in listed if name.startswith("puns@")]
    for split, index, args in (("test", 0, {}), ("train", 3, {}), ("train", 0, {"seed": 1})):
        with pytest.raises(JobFailure):
            domain(name).open(split, index, args)
    assert cli.main(["env", "new", "puns"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("check", "shoop"), "there is no environment 'shoop'"),
        (("check", "shop", "--split", "tset"), "no split 'tset'; it has train"),
        (("check", "shop", "--tasks", "0-500"), "has tasks 0-499; --tasks asks for 500"),
        (("check", "none.py"), "cannot be read"),
        (("new", "My-Env"), "small letters"),
        (("new", "9lives"), "small letters"),
        (("new", "class"), "no word of Python's"),
        (("new", "json"), "Python has a module 'json' already"),
        (("new", "shop"), "there is an environment 'shop' already"),
    ],
)
def test_a_wrong_line(line: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(["env", *line])
    except SystemExit as e:
        code = int(e.code or 0)
    assert code == 2
    assert says in capsys.readouterr().err

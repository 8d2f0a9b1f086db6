"""Episodes of task folders: steps, containers and grades, without a container."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollq.env import Action, CommandResult, SandboxSpec, attempt_labels
from rollq.env.attempt import AttemptLabels, labelled
from rollq.errors import EnvironmentFailure, JobFailure
from rollq_integrations.harbor import episode as episode_module
from rollq_integrations.harbor import load, room
from rollq_integrations.harbor.episode import HarborEpisode
from rollq_integrations.harbor.folder import read
from rollq_integrations.harbor.room import LOGS
from tests.rollq_integrations.harbor.task_folders import EXAMPLE, harbor, terminal_bench


class FakeContainer:
    """A container whose commands have the results that it is given; it remembers them and what was
    uploaded.
    """

    def __init__(self, files: Mapping[str, bytes] | None = None, **results: CommandResult) -> None:
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.uploaded: dict[str, Path] = {}
        self.closed = self.ended = False
        self._files = files or {}
        self._results = results

    def run(self, command: list[str], **options: Any) -> CommandResult:
        self.ran.append((command[-1], options))
        found = (
            r
            for key, r in self._results.items()
            if key in command[-1] and options.get("user") != "root"
        )
        return next(found, CommandResult("", 0))

    def end_processes(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def upload(self, source: Path, target: str) -> None:
        self.uploaded[target] = source

    def download(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]


def test_tests_in_a_container_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = 'artifacts = ["/app/x", {source = "/y"}]\n[verifier]\nenvironment_mode = "separate"'
    task = read(harbor(tmp_path / "one", toml, **{"tests/Dockerfile": "FROM y"}))
    assert (
        task.tests_place is not None and task.tests_place.dockerfile == tmp_path / "one" / "tests"
    )
    [step] = task.steps
    assert step.tests == () and step.artifacts == ("/logs/artifacts", "/app/x", "/y")
    copy = read(harbor(tmp_path / "two", toml))
    assert copy.tests_place == copy.place and [*dict(copy.steps[0].tests)] == ["/tests"]
    ready = read(harbor(tmp_path / "three", '[verifier.environment]\ndocker_image = "y:1"'))
    assert ready.tests_place is not None and ready.tests_place.image == "y:1"
    made = {
        place.image: FakeContainer({f"{LOGS}/reward.txt": b"1"})
        for place in (task.place, task.tests_place)
    }
    labels = []

    def make(maker: str, spec: SandboxSpec) -> FakeContainer:
        labels.append(attempt_labels())
        return made[spec.image]

    copied = []
    monkeypatch.setattr(room, "make_sandbox", make)
    monkeypatch.setattr(episode_module, "copy", lambda *copy: copied.append(copy))
    with labelled(AttemptLabels("r", "r/a/0", 1)):
        played = HarborEpisode(task)
    assert played.grade().reward == 1.0 and labels == [AttemptLabels("r", "r/a/0", 1)] * 2
    agents, tests = made.values()
    assert copied == [(path, agents, tests) for path in step.artifacts] and agents.ran == []
    assert tests.closed and not agents.closed


def test_the_oracle_plays_the_solution() -> None:
    task = load(str(EXAMPLE)).task("train", 0)
    bash, done = task.moves
    assert bash.arguments["seconds"] == 300 and bash.arguments["command"].endswith(
        "bash /solution/solve.sh"
    )
    assert done.name == "respond" and task.moves == load(str(EXAMPLE)).task("train", 0).moves


def episode(
    tmp_path: Path, container: FakeContainer, monkeypatch: pytest.MonkeyPatch, **files: str
) -> HarborEpisode:
    monkeypatch.setattr(room, "make_sandbox", lambda maker, spec: container)
    return HarborEpisode(read(harbor(tmp_path / "one", "[agent]\ntimeout_sec = 100", **files)))


def test_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container = FakeContainer(
        bad=CommandResult("out\n", 2), slow=CommandResult("", 137, "it ran longer than 60 s")
    )
    played = episode(tmp_path, container, monkeypatch)
    for arguments, text in (
        ({"command": "ls"}, ""),
        ({"command": "bad"}, "out\n\n[exit code 2]"),
        ({"command": "slow", "seconds": 10**400}, "[stopped: it ran longer than 60 s]"),
        ({"command": 3}, "Error: bash takes command, a text, and seconds, a number above 0"),
        (
            {"command": "ls", "seconds": 0},
            "Error: bash takes command, a text, and seconds, a number above 0",
        ),
        (
            {"command": "ls", "seconds": float("nan")},
            "Error: bash takes command, a text, and seconds, a number above 0",
        ),
    ):
        assert played.step(Action("bash", arguments)).text == text
    assert [options["seconds"] for _, options in container.ran] == [60, 60, 100]
    assert played.step(Action("python", {})).text == "Error: there is no tool 'python'"
    assert len(played.step(Action("p" * 10_000, {})).text) < 200
    assert played.step(Action("respond", {"content": "Done."})).done


def test_files_of_a_step_go_into_the_folder_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict.fromkeys(
        ("instruction.md", "workdir/notes", "workdir/src/x", "tests/test.sh"), "x"
    )
    task = harbor(
        tmp_path / "one",
        "[[steps]]\nname = 'first'",
        **{f"steps/first/{name}": text for name, text in files.items()},
    )
    container = FakeContainer(pwd=CommandResult("/app\n", 0))
    monkeypatch.setattr(room, "make_sandbox", lambda maker, spec: container)
    HarborEpisode(read(task))
    workdir = task / "steps/first/workdir"
    # not /app itself, which would get the owner and the mode of the task's folder
    assert container.uploaded == {"/app/notes": workdir / "notes", "/app/src": workdir / "src"}
    container._results = {"pwd": CommandResult("no such folder", 126)}
    with pytest.raises(EnvironmentFailure, match="one: its folder: no such folder"):
        HarborEpisode(read(task))


def test_every_sandbox_of_a_task_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unclosable(FakeContainer):
        def close(self) -> None:
            super().close()
            raise EnvironmentFailure("it does not answer")

    compose = "services: {main: {}, db: {image: x}, cache: {image: x}}"
    made: list[FakeContainer] = []

    def make(maker: str, spec: SandboxSpec) -> FakeContainer:
        made.append(Unclosable() if spec.beside else FakeContainer())
        return made[-1]

    monkeypatch.setattr(room, "make_sandbox", make)
    task = harbor(tmp_path / "one", "", **{"environment/docker-compose.yaml": compose})
    played = HarborEpisode(read(task))
    with pytest.raises(EnvironmentFailure, match="does not answer"):
        played.close()
    assert [each.closed for each in made] == [True] * 3


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ({"reward.txt": "1\n"}, 1.0),
        ({"reward.txt": "0.25"}, 0.25),
        ({"reward.json": '{"reward": 0.5, "style": 7}', "reward.txt": "1"}, 0.5),
        ({"reward.json": '{"passed": true}'}, 1.0),
        ({"reward.json": "0.75"}, 0.75),
    ],
)
def test_grades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], reward: float
) -> None:
    container = FakeContainer({f"{LOGS}/{name}": text.encode() for name, text in files.items()})
    assert episode(tmp_path, container, monkeypatch).grade().reward == reward
    assert container.uploaded == {"/tests": tmp_path / "one" / "tests"}


@pytest.mark.parametrize(
    ("files", "tests", "says"),
    [
        (
            {},
            CommandResult("no such module\n", 1),
            r"(?s)ended with code 1 and no reward; they said:.no such module",
        ),
        (
            {},
            CommandResult("", 137, "it ran longer than 600 s"),
            "were stopped: it ran longer than 600 s",
        ),
        (
            {"reward.txt": ""},
            CommandResult("", 0),
            "wrote /logs/verifier/reward.txt: could not convert",
        ),
        ({"reward.txt": "nan"}, CommandResult("", 0), "the rewards .* from 0 to 1 is needed"),
        ({"reward.txt": "2"}, CommandResult("", 0), "the rewards .* from 0 to 1 is needed"),
        (
            {"reward.json": '{"a": 1, "b": 0}'},
            CommandResult("", 0),
            "where one `reward` from 0 to 1 is needed",
        ),
        ({"reward.json": '{"reward": "1"}'}, CommandResult("", 0), "finite numbers"),
        (
            {"reward.json": '{"reward": 1, "style": 1e999}'},
            CommandResult("", 0),
            "finite numbers",
        ),
        ({"reward.json": "{"}, CommandResult("", 0), "wrote /logs/verifier/reward.json"),
        (
            {"reward.json": json.dumps({"reward": 1, **dict.fromkeys(map(str, range(9999)), 1)})},
            CommandResult("", 0),
            "wrote /logs/verifier/reward.json: it has more than 65536 bytes",
        ),
        ({"reward.json": "[" * 100_000}, CommandResult("", 0), "wrote /logs/verifier/reward.json"),
    ],
)
def test_what_is_no_grade_is_a_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Mapping[str, str],
    tests: CommandResult,
    says: str,
) -> None:
    container = FakeContainer(
        {f"{LOGS}/{name}": text.encode() for name, text in files.items()}, test=tests
    )
    with pytest.raises(EnvironmentFailure, match=says):
        episode(tmp_path, container, monkeypatch).grade()


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (1, 0.0)])
def test_terminal_bench_is_graded_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reward: float
) -> None:
    container = FakeContainer(**{"run-tests.sh": CommandResult("...", code)})
    monkeypatch.setattr(room, "make_sandbox", lambda maker, spec: container)
    grade = HarborEpisode(read(terminal_bench(tmp_path))).grade()
    assert (grade.reward, grade.info) == (reward, {"rewards": {"reward": reward}, "tests": "..."})


def test_terminal_benchs_tests_that_do_not_run_are_no_grade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = FakeContainer(**{"run-tests.sh": CommandResult("pytest: not found", 127)})
    monkeypatch.setattr(room, "make_sandbox", lambda maker, spec: container)
    with pytest.raises(EnvironmentFailure, match="did not run: pytest: not found"):
        HarborEpisode(read(terminal_bench(tmp_path))).grade()
    (tmp_path / "run-tests.sh").unlink()
    with pytest.raises(JobFailure, match=r"has no run-tests\.sh"):
        read(tmp_path)


@pytest.mark.parametrize("separate", [False, True])
def test_what_the_policy_has_spoiled_earns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separate: bool
) -> None:
    spoiled, fresh = FakeContainer(), FakeContainer({f"{LOGS}/reward.txt": b"1"})
    order = [spoiled, spoiled, fresh, spoiled] if separate else [spoiled, fresh]
    made = iter(order)
    monkeypatch.setattr(room, "make_sandbox", lambda maker, spec: next(made))
    monkeypatch.setattr(episode_module, "copy", lambda *copy: None)
    toml = "[verifier]\nenvironment_mode = 'separate'" if separate else ""
    grade = HarborEpisode(read(harbor(tmp_path / "one", toml))).grade()
    assert grade.reward == 0.0 and "no reward" in str(grade.info["tests"])
    assert spoiled.ended and fresh.closed and next(made, None) is None


def test_a_step_that_the_policy_has_spoiled_ends_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled, fresh = FakeContainer(), FakeContainer({f"{LOGS}/reward.txt": b"1"})
    made = iter([spoiled, fresh])
    monkeypatch.setattr(room, "make_sandbox", lambda maker, spec: next(made))
    files = {
        f"steps/{name}/{file}": "x"
        for name in ("first", "second")
        for file in ("instruction.md", "tests/test.sh")
    }
    toml = "[[steps]]\nname = 'first'\n[[steps]]\nname = 'second'"
    played = HarborEpisode(read(harbor(tmp_path / "one", toml, **files)))
    seen = played.step(Action("respond", {"content": "done"}))
    assert (seen.done, seen.reward, played.grade().reward) == (True, 0.0, 0.0)

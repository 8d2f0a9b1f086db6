"""The tests that ship for makers of sandboxes: ours pass them, that of the page does, and they find
the faults that a maker may have. Run `make test-containers` for those with containers.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollq.env import CommandResult, SandboxSpec
from rollq.errors import ForOtherWorkers, JobFailure, RolloutFailure
from rollq_integrations.sandbox import Bubblewrap, Limits, make_sandbox
from rollq_integrations.sandbox import sandbox_tests as module
from rollq_integrations.sandbox.sandbox_tests import SandboxTests, sandbox_tests
from tests import bubblewrap, container_engine
from tests.conftest import REPO
from tests.container_engine import IMAGE, containers
from tests.packages import install
from tests.rollq_integrations.harbor.task_folders import harbor

PAGE = (REPO / "docs/sandboxes.md").read_text()
FILES = dict(re.findall(r"`([\w.]+)`[^`]*:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
"""The files of the page, by name."""
CONTAINERS = [pytest.mark.containers, pytest.mark.timeout(600), container_engine.UNCLOSED]


def bubblewraps() -> list[str]:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True
    ).stdout
    return [line.split()[0] for line in listed.splitlines() if " --hostname sandbox " in line]


@pytest.fixture(scope="module")
def bwrap() -> None:
    bubblewrap.require()


@pytest.fixture(scope="class")
def served() -> Iterator[None]:
    with container_engine.served():
        yield


class TestBubblewrap(sandbox_tests("bubblewrap", SandboxSpec(), bubblewraps)):
    pytestmark = pytest.mark.usefixtures("bwrap")


class TestContainers(sandbox_tests("containers", SandboxSpec(image=IMAGE), containers)):
    pytestmark: ClassVar = [*CONTAINERS, pytest.mark.usefixtures("served")]


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the page's package, from its text alone, and a kubectl that starts
    containers.
    """
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    install(tmp_path, project["name"], project["entry-points"], my_pods=FILES["my_pods.py"])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(__file__).parent / 'cluster'}:{os.environ['PATH']}")
    return tmp_path


def runs(folder: Path, *command: str) -> str:
    """The output of a module of Python, which ends well."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.containers
@pytest.mark.timeout(900)
def test_the_pages_pods_pass(pods: Path) -> None:
    assert len(FILES["my_pods.py"].splitlines()) <= 120
    test = FILES["test_my_pods.py"].replace("docker.io/library/python:3.11-slim", IMAGE)
    (pods / "test_my_pods.py").write_text(test)
    assert "19 passed, 3 skipped" in runs(
        pods, "pytest", "-q", "-p", "no:cacheprovider", "test_my_pods.py"
    )


@pytest.mark.containers
@pytest.mark.timeout(600)
def test_the_pages_pods_play_a_task_of_harbor(pods: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tests in a pod of their own, to which the policy's file is copied."""
    monkeypatch.setenv("ROLLQ_SANDBOX", "pods")
    own = 'artifacts = ["/made"]\n[verifier]\nenvironment_mode = "separate"\n'
    files = {
        "solution/solve.sh": "mkdir /made && echo 1 > /made/reward.txt",
        "tests/test.sh": "#!/bin/sh\ncp /made/reward.txt /logs/verifier/reward.txt || "
        "echo 0 > /logs/verifier/reward.txt",
    }
    harbor(pods / "task", f'{own}[environment]\ndocker_image = "{IMAGE}"\n', **files)
    assert "0 problems" in runs(pods, "rollq", "env", "check", f"harbor:{pods / 'task'}")


class Deaf(Bubblewrap):
    """A faulty sandbox: it never ends a command by its time."""

    def run(self, command: Sequence[str], **options: Any) -> CommandResult:
        return super().run(command, **{**options, "seconds": 20.0})


class Open(Bubblewrap):
    """One that gives away the worker's variables."""

    def run(self, command: Sequence[str], **options: Any) -> CommandResult:
        return super().run(command, **{**options, "env": {**os.environ, **options.get("env", {})}})


class Rude(Bubblewrap):
    """One that raises where a command cannot run."""

    def run(self, command: Sequence[str], **options: Any) -> CommandResult:
        result = super().run(command, **options)
        if result.code == 126:
            raise RolloutFailure(result.output)
        return result


class Lazy(Bubblewrap):
    """One that is left when it is closed."""

    def close(self) -> None:
        LEFT.append(self)


class Polite(Bubblewrap):
    """One that ends late commands by another signal."""

    def run(self, command: Sequence[str], **options: Any) -> CommandResult:
        result = super().run(command, **options)
        return replace(result, code=124) if result.stopped else result


class Tidy(Bubblewrap):
    """One that ends processes with their files."""

    def end_processes(self) -> None:
        self.run(["/bin/sh", "-c", "rm -rf /tmp/*"])


class Vague(Bubblewrap):
    """One whose missing files are empty."""

    def download(self, path: str) -> bytes:
        try:
            return super().download(path)
        except FileNotFoundError:
            return b""


LIMITS = Limits(seconds=5, memory=4 << 30)
"""Those of faulty sandboxes, whatever their spec says."""
LEFT: list[Bubblewrap] = []
CLOSED = "test_nothing_is_left_when_it_is_closed"


@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Bubblewrap, "test_a_service_runs_beside_another_sandbox"),
        (Bubblewrap, "test_an_image_is_built"),
        (Bubblewrap, "test_commands_begin_in_the_folder_of_the_spec"),
        (Bubblewrap, "test_folders_of_the_spec_are_made_for_every_user"),
        (Bubblewrap, "test_memory_is_that_of_all_processes_together"),
        (Bubblewrap, "test_names_of_services_lead_to_loopback"),
        (Bubblewrap, "test_the_time_of_the_spec_is_that_of_a_command_that_names_none"),
        (Bubblewrap, "test_variables_of_the_spec_are_those_of_every_command"),
        (Deaf, "test_a_command_that_takes_too_long_is_stopped"),
        (Open, "test_variables_are_those_of_the_command_alone"),
        (Polite, "test_a_command_that_takes_too_long_is_stopped"),
        (Tidy, "test_processes_are_ended_and_files_stay"),
        (Rude, "test_commands_that_cannot_run_are_no_failure"),
        (Lazy, CLOSED),
        (Vague, "test_what_cannot_be_downloaded"),
    ],
)
def test_a_faulty_maker_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: type[Bubblewrap], test: str
) -> None:
    monkeypatch.setattr(module, "make_sandbox", lambda name, spec: kind(LIMITS))
    monkeypatch.setattr(module, "GONE_S", 3.0)
    monkeypatch.setattr(module, "HOLD", module.HOLD.replace("sleep 20", "sleep 5"))
    tests = sandbox_tests("faulty", SandboxSpec(), bubblewraps)()
    assert isinstance(tests, SandboxTests)
    try:
        with pytest.raises((AssertionError, RolloutFailure)):
            getattr(tests, test)()
    finally:
        while LEFT:
            Bubblewrap.close(LEFT.pop())


@pytest.mark.parametrize(
    ("name", "spec", "error", "says"),
    [
        ("none", SandboxSpec(), ForOtherWorkers, "a maker of sandboxes 'none'; there are bubble"),
        ("containers", SandboxSpec(), JobFailure, "a container needs an image"),
        ("bubblewrap", SandboxSpec(image="x", network=True), JobFailure, "its image, network"),
    ],
)
def test_what_no_maker_makes(
    name: str, spec: SandboxSpec, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        make_sandbox(name, spec)

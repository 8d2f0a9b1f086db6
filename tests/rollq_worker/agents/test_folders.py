"""The folder of an agent's command."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rollq_worker.agents.programs.folders import AgentFolder
from rollq_worker.agents.programs.users import AgentUsers


@pytest.fixture(autouse=True)
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_attempts_of_a_job_have_the_same_path_one_after_the_other() -> None:
    first = AgentFolder("r/g/0")
    (first.path / "file").touch()
    first.remove()
    assert not first.path.exists()
    again, other = AgentFolder("r/g/0"), AgentFolder("r/g/1")
    assert again.path == first.path != other.path
    assert list(again.path.iterdir()) == []


def test_what_a_killed_worker_left_is_removed(below: Path) -> None:
    dies = """
import os
from rollq_worker.agents.programs.folders import AgentFolder
folder = AgentFolder("r/g/0")
(folder.path / "file").touch()
print(folder.path, flush=True)
os._exit(9)
"""
    left = subprocess.run(
        [sys.executable, "-c", dies],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(below)},
    )
    path = Path(left.stdout.strip())
    assert (path / "file").exists()
    again = AgentFolder("r/g/0")
    assert again.path == path and list(path.iterdir()) == []


def test_two_attempts_at_once_are_apart(below: Path) -> None:
    first = AgentFolder("r/g/0")
    (first.path / "file").touch()
    second = AgentFolder("r/g/0")
    assert second.path != first.path and list(second.path.iterdir()) == []
    second.remove()
    assert (first.path / "file").exists()
    first.remove()
    assert list(below.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_of_ours_is_left_alone(below: Path, kind: str) -> None:
    first = AgentFolder("r/g/0")
    first.remove()
    (elsewhere := below / "elsewhere").mkdir()
    (elsewhere / "file").touch()
    first.path.symlink_to(elsewhere) if kind == "link" else first.path.touch()
    again = AgentFolder("r/g/0")
    assert again.path != first.path and again.path.is_dir()
    assert (elsewhere / "file").exists() and first.path.exists()


def test_folders_without_rights_are_removed() -> None:
    code = """
import os
from rollq_worker.agents.programs.folders import AgentFolder
if os.geteuid() == 0:  # whom no mode keeps out
    os.setuid(65534)
folder = AgentFolder("r/g/0")
(folder.path / "go/pkg").mkdir(parents=True)
for path, mode in (("go/pkg", 0), ("go", 0o555)):
    (folder.path / path).chmod(mode)
folder.remove()
raise SystemExit(folder.path.exists())
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:
        os.chmod(open_to_all, 0o777)
        env = {**os.environ, "TMPDIR": open_to_all}
        subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_a_user_whose_processes_cannot_be_ended_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = AgentUsers(range(1))

    def fails(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "no process left")

    monkeypatch.setattr(subprocess, "run", fails)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            users.take()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    assert users.take() == 0
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(BlockingIOError):
        users.give_back(0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    assert users.take() == 0

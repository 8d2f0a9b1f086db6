"""Environments from a file: their names, and who may play them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollq.errors import JobFailure
from rollq_worker.environments import domain, files, names
from rollq_worker.failures import ForOtherWorkers

GAME = """
from dataclasses import dataclass

class Game:
    name, version = "game", "game 1"
    def splits(self): return {"train": 1}
    def task(self, split, index): ...
    def open(self, split, index, args): ...

def load(variant):
    assert variant is None
    return Game()

def broken(variant):
    raise RuntimeError("no data")

number = 7
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of one test is known to the next one."""
    monkeypatch.setenv(files.FILES_VARIABLE, "")
    monkeypatch.setattr("rollq_worker.environments._domains", {})


@pytest.fixture
def game(tmp_path: Path) -> Path:
    path = tmp_path / "game.py"
    path.write_text(GAME)
    return path


def test_a_name_has_the_hash_of_the_file(game: Path) -> None:
    name = files.add_file(f"{game}:load")
    assert name.partition("@")[0] == "game" and len(name) == len("game@") + files.DIGITS
    assert files.add_file(str(game)) == name  # `load` is the default
    assert os.environ[files.FILES_VARIABLE] == f"{game}:load"
    assert name in names()
    assert domain(name).version == "game 1"
    assert domain(name) is domain(name)
    game.write_text(GAME + "# changed\n")
    assert files.add_file(str(game)) != name


def test_a_child_process_knows_it(game: Path) -> None:
    name = files.add_file(str(game))
    code = f"from rollq_worker.environments import domain; print(domain({name!r}).version)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "game 1\n"


def test_only_the_same_file_is_played(game: Path) -> None:
    with pytest.raises(ForOtherWorkers, match=r"game@0123456789ab.*no such file here; .*rollq worker --env FILE"):
        domain("game@0123456789ab")
    name = files.add_file(str(game))
    with pytest.raises(ForOtherWorkers, match=f"no such file here, but {name}"):
        domain("game@0123456789ab")
    game.write_text(GAME + "# changed after the name was made\n")
    with pytest.raises(ForOtherWorkers, match=f"{name}.*no such file here, but game@"):
        domain(name)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("none", r"game\.py has no function 'none'"),
        ("number", r"game\.py has no function 'number'"),
        ("broken", r"game\.py:broken\): RuntimeError: no data"),
        ("dataclass", r"game\.py:dataclass"),
    ],
)
def test_a_function_that_returns_no_domain(game: Path, function: str, message: str) -> None:
    name = files.add_file(f"{game}:{function}")
    with pytest.raises(JobFailure, match=message):
        domain(name)


def test_a_file_that_cannot_be_run(game: Path) -> None:
    game.write_text("import no_such_module_of_mine\n")
    name = files.add_file(str(game))
    for _ in range(2):  # a half-made module is not kept
        with pytest.raises(JobFailure, match=r"ModuleNotFoundError.*no_such_module_of_mine"):
            domain(name)


@pytest.mark.parametrize("path", ["none.py", "a b.py", ".py", "folder.py"])
def test_a_wrong_path(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "a b.py").write_text(GAME)
    (tmp_path / ".py").write_text(GAME)
    with pytest.raises(JobFailure, match=r"cannot be read|must match"):
        files.add_file(str(tmp_path / path))

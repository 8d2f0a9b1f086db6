"""Environments from a file: their names, and who may play them."""

import os
from pathlib import Path

import pytest

from rollq.errors import ForOtherWorkers, JobFailure
from rollq_worker.environments import domain, files, names
from rollq_worker.extensions.named_files import DIGITS

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

def bare_load():
    return Game()

def bare(variant):
    return Game

def nothing(variant):
    return None

def changed(**fields):
    game = Game()
    vars(game).update(fields)
    return game

def unnamed(variant): return changed(version=1)
def empty(variant): return changed(splits=lambda: {"train": 0})
def listed(variant): return changed(splits=lambda: [2])

number = 7
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of one test is known to the next one."""
    monkeypatch.setenv(files.FILES.variable, "")
    monkeypatch.setattr("rollq_worker.environments._domains", {})


@pytest.fixture
def game(tmp_path: Path) -> Path:
    path = tmp_path / "game.py"
    path.write_text(GAME)
    return path


def test_a_name_has_the_hash_of_the_file(game: Path) -> None:
    name = files.add_file(f"{game}:load")
    assert name.partition("@")[0] == "game" and len(name) == len("game@") + DIGITS
    assert files.add_file(str(game)) == name  # `load` is the default
    assert os.environ[files.FILES.variable] == f"{game}:load"
    assert name in names()
    assert domain(name).version == "game 1"
    assert domain(name) is domain(name)
    game.write_text(GAME + "# changed\n")
    assert files.add_file(str(game)) != name


def test_only_the_same_file_is_played(game: Path) -> None:
    with pytest.raises(
        ForOtherWorkers, match=r"game@0123456789ab.*no such file here; .*rollq worker --env FILE"
    ):
        domain("game@0123456789ab")
    name = files.add_file(str(game))
    with pytest.raises(ForOtherWorkers, match=f"no such file here, but {name}"):
        domain("game@0123456789ab")
    game.write_text(GAME + "# changed after the name was made\n")
    with pytest.raises(ForOtherWorkers, match=f"{name}.*no such file here, but game@"):
        domain(name)
    game.unlink()
    with pytest.raises(
        ForOtherWorkers, match=r"no such file here, and the environment '.*' cannot be read"
    ):
        domain(name)


def test_what_is_run_is_what_has_the_name(game: Path) -> None:
    """Also when the file changes between the two, or a compiled file of another version has the
    same time and size.
    """
    first = files.add_file(str(game))
    assert domain(first).version == "game 1"
    at = game.stat()
    game.write_text(GAME.replace("game 1", "game 2"))
    os.utime(game, ns=(at.st_atime_ns, at.st_mtime_ns))
    second = files.add_file(str(game))
    assert second != first and domain(second).version == "game 2"
    found = files.FILES.of(second)
    game.write_text(GAME)
    with pytest.raises(ForOtherWorkers, match="has changed since"):
        files.load_of(found)


def test_a_loaded_file_that_changes_is_played_as_it_was_and_as_it_is(game: Path) -> None:
    """A worker was told of the path once, when it started."""
    was = files.add_file(str(game))
    assert domain(was).version == "game 1"
    game.write_text(GAME.replace("game 1", "game 2"))
    now = files.FILES.file(str(game)).name
    assert (domain(was).version, domain(now).version) == ("game 1", "game 2")


def test_another_file_that_cannot_be_read_does_no_harm(game: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(GAME)
    files.add_file(str(other))
    name = files.add_file(str(game))
    other.unlink()
    assert domain(name).version == "game 1"
    assert name in names()


def test_a_link_has_its_own_name(game: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(game)
    name = files.add_file(str(link))
    assert name.startswith("link@") and domain(name).version == "game 1"


def test_a_file_beside_it_is_not_imported(game: Path, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("number = 7\n")
    game.write_text("import helper\n" + GAME)
    name = files.add_file(str(game))
    with pytest.raises(
        JobFailure, match=r"game\.py imports helper\.py from beside it.*rollq env new"
    ):
        domain(name)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("none", r"game\.py has no function 'none'"),
        ("number", r"game\.py has no function 'number'"),
        ("broken", r"game\.py:broken\): RuntimeError: no data"),
        ("dataclass", r"game\.py:dataclass"),
        ("Game", r"Game is called with one argument.*too many positional arguments"),
        ("bare_load", r"bare_load is called with one argument.*too many positional arguments"),
        ("bare", r"returned the class Game, not an object of it"),
        ("nothing", r"no Domain: a NoneType lacks name, version, splits, task, open"),
        ("unnamed", r"a Domain whose version is 1, not a text"),
        ("empty", r"a Domain whose splits\(\) are \{'train': 0\}"),
        ("listed", r"a Domain whose splits\(\) are \[2\]"),
    ],
)
def test_a_function_that_returns_no_domain(game: Path, function: str, message: str) -> None:
    name = files.add_file(f"{game}:{function}")
    with pytest.raises(JobFailure, match=message):
        domain(name)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_module_of_mine", r"ModuleNotFoundError.*no_such_module_of_mine"),
        ("import asyncio; raise asyncio.CancelledError", r"game\.py:load\): CancelledError: "),
        ("import sys; sys.exit(3)", r"game\.py:load\): SystemExit: 3 \(/\S+/game\.py:1\)"),
        ("def", r"game\.py:load\): SyntaxError"),
        ("x = '\udce9'", r"game\.py:load\): SyntaxError"),
        ("x = '\0'", r"game\.py:load\): "),
    ],
)
def test_a_file_that_cannot_be_run(game: Path, code: str, says: str) -> None:
    game.write_bytes(code.encode("utf-8", "surrogateescape"))
    name = files.add_file(str(game))
    for _ in range(2):  # a half-made module is not kept
        with pytest.raises(JobFailure, match=says):
            domain(name)


@pytest.mark.parametrize("path", ["none.py", "a b.py", ".py", "folder.py", "a,b/game.py"])
def test_a_wrong_path(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "a b.py").write_text(GAME)
    (tmp_path / ".py").write_text(GAME)
    with pytest.raises(JobFailure, match=r"cannot be read|must match|has a comma"):
        files.add_file(str(tmp_path / path))

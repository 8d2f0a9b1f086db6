"""The private names of other packages that rollq uses: each with its reason, and a test that it is
still there.

A private name may go with any release, so the list stays short. Whoever needs one more enters it
here, and says why no public name does it. Names are found by themselves: an attribute with an
underscore that rollq's own code defines nowhere.
"""

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("producer", "worker", "viewer", "integrations")
NAMEDTUPLE = {"_asdict", "_replace", "_fields", "_make"}
"""They are documented."""
MOST = 8


@dataclass(frozen=True)
class Private:
    library: str
    name: str
    file: str
    """Where it is used."""
    reason: str
    test: Callable[[], bool] | str
    """Whether the library still has it; or the file of the tests that need it."""


VERIFIERS = "tests/rollq_integrations/verifiers/test_verifiers.py"

PRIVATE = [
    Private(
        "CPython",
        "_current_frames",
        "worker/rollq_worker/agents/programs/running.py",
        "documented, with an underscore: where a thread is that does not end",
        lambda: threading.get_ident() in sys._current_frames(),
    ),
    Private(
        "verifiers",
        "_state_adapter",
        "integrations/rollq_integrations/verifiers/toolsets.py",
        "a toolset's state goes to the tool and back as verifiers' own server sends it",
        VERIFIERS,
    ),
    Private(
        "verifiers",
        "_exit_stack",
        "integrations/rollq_integrations/verifiers/toolsets.py",
        "a toolset has no public way to close what it opened",
        VERIFIERS,
    ),
]


@pytest.mark.parametrize(
    "private",
    PRIVATE,
    ids=lambda private: f"{private.library}-{private.name}-{Path(private.file).stem}",
)
def test_it_is_still_there(private: Private) -> None:
    assert (ROOT / private.test).is_file() if isinstance(private.test, str) else private.test()


def test_no_other_private_name_is_used() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}
    own = {name for tree in trees.values() for name in defined(tree)}
    used = {
        (file, name)
        for file, tree in trees.items()
        for name in accessed(tree)
        if name not in own | NAMEDTUPLE
    }
    assert used == {(private.file, private.name) for private in PRIVATE}
    assert len({(private.library, private.name) for private in PRIVATE}) <= MOST


def defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module gives to functions, classes, attributes and variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.Name(ctx=ast.Store()):
                yield node.id


def accessed(tree: ast.Module) -> Iterator[str]:
    """The names with one underscore that a module reads of objects and imports from modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Load()):
                names = [node.attr]
            case ast.ImportFrom():
                names = [alias.name for alias in node.names]
            case _:
                names = []
        yield from (name for name in names if name.startswith("_") and not name.startswith("__"))

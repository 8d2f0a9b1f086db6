"""The rules of CONTRIBUTING.md that no linter knows."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in ("producer", "worker", "integrations", "viewer")
    for path in (ROOT / folder).rglob("*.py")
)
NAME = re.compile(r"^(\w+)\b.* = ", re.MULTILINE)
FOREIGN = re.compile(r"(What|Whether|How|Those|That|Which|Whose|Who)\b")


def nodes(kind: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """The place of each node of that kind, and the node."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def test_a_file_is_one_idea() -> None:
    lengths = {path.relative_to(ROOT): path.read_text().count("\n") for path in FILES}
    assert {path: length for path, length in lengths.items() if length > 500} == {}


def test_no_ternary_holds_another() -> None:
    nested = [
        place
        for place, node in nodes(ast.IfExp)
        if any(isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse))
    ]
    assert nested == []


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    foreign = []
    for place, node in nodes(ast.Expr):
        text = getattr(node.value, "value", None)
        if isinstance(text, str) and FOREIGN.match(text.strip()):
            foreign.append(f"{place}: {text.strip()[:60]}")
    assert foreign == []


@pytest.mark.parametrize("text", ["What it does.", "Whether it is.", "How it is."])
def test_the_rule_finds_such_a_docstring(text: str) -> None:
    assert FOREIGN.match(text)


def test_a_string_describes_what_stands_before_it() -> None:
    strays = []
    for place, node in nodes(ast.Module | ast.ClassDef | ast.FunctionDef):
        for before, after in pairwise(node.body):
            if is_text(before) and is_text(after):
                strays.append(f"{place}: {after.value.value[:60]}")
    assert strays == []


def is_text(node: ast.AST) -> bool:
    value = getattr(node, "value", None) if isinstance(node, ast.Expr) else None
    return isinstance(getattr(value, "value", None), str)


def test_docstrings_name_constants_that_exist() -> None:
    written = re.compile(r"\b([a-z_]+)\.([A-Z][A-Z0-9_]+)\b")
    modules = {(path.stem, name) for path in FILES for name in NAME.findall(path.read_text())}
    dead = []
    for place, node in nodes(ast.Expr):
        if is_text(node):
            dead += [(place, name) for name in written.findall(node.value.value)]
    assert [(place, name) for place, name in dead if name not in modules] == []

"""Reads the files of deploy/monitoring: every expression, and the metrics and labels
that it names.
"""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.conftest import REPO

FOLDER = REPO / "deploy" / "monitoring"
PANELS = json.loads((FOLDER / "grafana" / "rollq.json").read_text())["panels"]
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PARTS = ("lhs", "rhs", "expr", "param", "vector_selector")


def expressions() -> dict[str, str]:
    """Every expression, by where it is."""
    of_panels = {
        f"{panel['id']}: {panel['title']} {target['refId']}": target["expr"].replace(
            "$__rate_interval", "1m"
        )
        for panel in PANELS
        for target in panel.get("targets", ())
    }
    return of_panels | {rule["alert"]: rule["expr"] for rule in RULES}


def selectors(expression: str) -> list[tuple[str, dict[str, str]]]:
    """The metrics that an expression reads, each with its label matchers. Raises ValueError for no
    PromQL.
    """
    return [
        (node.name, _matchers(node))
        for node in _nodes(_parsed(expression))
        if hasattr(node, "name")
    ]


def grouped_by(expression: str) -> set[str]:
    """The labels that it groups by."""
    modifiers = [node.modifier for node in _nodes(_parsed(expression)) if hasattr(node, "param")]
    return {label for modifier in modifiers if modifier is not None for label in modifier.labels}


def named_metrics() -> set[str]:
    return {name for expression in expressions().values() for name, _ in selectors(expression)}


def _parsed(expression: str) -> Any:
    import promql_parser  # of `make test-packages`

    return promql_parser.parse(expression)


def _matchers(node: Any) -> dict[str, str]:
    return {matcher.name: matcher.value for matcher in node.matchers.matchers}


def _nodes(node: Any) -> Iterator[Any]:
    if hasattr(node, "matchers"):
        yield node
        return
    yield node
    children = [child for name in PARTS if (child := getattr(node, name, None)) is not None]
    for child in [*children, *getattr(node, "args", ())]:
        yield from _nodes(child)

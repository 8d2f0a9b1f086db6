"""What a benchmark found, beside its targets: printed, and written as JSON for run.py."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One figure and its target."""

    what: str
    value: float
    most: float
    """The target: the figure must not be above it."""
    unit: str = ""
    """Empty for a ratio."""
    ratio: bool = True
    """Whether the figure compares two things of the same run, so that it says something on any
    machine.
    """

    @property
    def ok(self) -> bool:
        return self.value <= self.most

    @property
    def verdict(self) -> str:
        return "ok" if self.ok else "FAILS"

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.what}: {self.value:.3g}{unit} (at most {self.most:g}: {self.verdict})"


def parser_for(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the option that `conclude` reads."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="tokenizer.json, its config and a chat template (bundled)",
    )


def conclude(result: dict[str, Any], checks: Sequence[Check], as_json: bool) -> int:
    """Prints the checks, and the JSON if it was asked for. Returns the exit code: 1 when a target
    is missed.
    """
    print()
    for check in checks:
        print(check)
    if as_json:
        print(json.dumps({**result, "checks": [asdict(check) for check in checks]}))
    return int(not all(check.ok for check in checks))

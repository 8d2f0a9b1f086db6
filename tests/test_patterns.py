"""Regular expressions that some supported Python reads wrongly."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{\d+(?:,\d*)?\})\+|\(\?>")
"""A possessive group, and an atomic one. Before Python 3.11.5 they may match what they do not
(cpython#106052); of single characters they are right.
"""


def test_no_pattern_has_a_possessive_group() -> None:
    sources = [
        path
        for folder in ("producer", "worker", "viewer", "integrations")
        for path in (ROOT / folder).rglob("*.py")
    ]
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if POSSESSIVE_GROUP.search(line)
    ]
    assert len(sources) > 300 and found == []

"""Lines of an exported file."""

import json
from pathlib import Path
from typing import Any


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def jobs(path: Path) -> list[str]:
    return [line["job"] for line in lines(path)]

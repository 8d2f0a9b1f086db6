"""What is in an exported file, of either form."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def lines(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return found
    return [json.loads(line) for line in path.read_text().splitlines()]


def jobs(path: Path) -> list[str]:
    return [line["job"] for line in lines(path)]

"""The shape of an engine in a TOML file: the table `[engines.shape]`, alone or in a fleet's file."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from rollq.errors import SettingsError
from rollq_worker.simulation.engine_model import EngineShape
from rollq_worker.simulation.tables import Table, read_toml

COUNTS = ("kv_tokens", "max_running", "chunk_tokens")


def read_shape(path: Path) -> EngineShape:
    """The shape in that file; its other tables are not read. Raises SettingsError."""
    engines = Table(str(path), read_toml(path)).table("engines")
    if not engines.has("shape"):
        raise SettingsError(f"{path} has no table [engines.shape]; benchmarks/engine_shape.py writes one")
    return shape_of(engines.table("shape"))


def shape_of(table: Table) -> EngineShape:
    """Raises SettingsError."""
    read: dict[str, Any] = {}
    for one in fields(EngineShape):
        default = None if one.default is MISSING else one.default
        if one.name in COUNTS:
            read[one.name] = table.whole(one.name, 1)
        elif one.name.endswith("_s"):
            read[one.name] = table.number(one.name, default=default)
        else:
            read[one.name] = table.flag(one.name, default=default)
    table.end()
    return EngineShape(**read)

"""Which format an exported file has: Parquet when its name ends in `.parquet`, else JSON Lines."""

from collections.abc import Iterator
from pathlib import Path

from rollq.export import jsonl, parquet
from rollq.export.trajectory_output import TrajectoryOutput
from rollq.export.validation import Checked


def open_output(path: Path, *, append: bool) -> TrajectoryOutput:
    """Open it for writing. `append` keeps what it holds.

    Raises SettingsError when it cannot be written, when another process writes it, or when the
    format needs an extra that is not installed; ContractError when it holds something other than
    trajectories.
    """
    kind = parquet.ParquetFolder if path.suffix == ".parquet" else jsonl.TrajectoryFile
    return kind(path, append=append)


def check(path: Path) -> Iterator[Checked]:
    """Every trajectory of the file, checked on its own. Raises SettingsError, ContractError."""
    yield from parquet.check(path) if parquet.is_parquet(path) else jsonl.check(path)

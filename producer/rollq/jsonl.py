"""Trajectories in a JSON Lines file, one a line, durable before anybody hears of them.

A crash leaves whole lines and at most one torn one at the end, which the next opening cuts off. A job is written once,
however often its group comes. What a line holds is `rollq.export`'s business.
"""

import json
import os
import stat
from pathlib import Path
from types import TracebackType

from rollq.errors import ContractError, SettingsError
from rollq.export import record
from rollq.job import Json
from rollq.trajectory import Trajectory


class TrajectoryFile:
    """A file open for writing."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """`append` keeps what is there, else the file is emptied.

        Raises SettingsError when it cannot be written, ContractError when something else is there.
        """
        try:
            self._file = path.open("r+b" if append and path.is_file() else "wb")
        except OSError as e:
            raise SettingsError(f"cannot write {path}: {e.strerror}") from e
        self.path = path
        self.jobs: set[str] = set()
        """Ids of the jobs in it."""
        self._regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)  # not a pipe, not /dev/null
        if self._file.readable():
            try:
                self._resume()
            except BaseException:
                self._file.close()
                raise

    def _resume(self) -> None:
        """Reads which jobs are there, and goes to the end of the last whole line."""
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            self.jobs.add(str(_parse(line, f"{self.path}:{number}")["job"]))
            end += len(line)
        self._file.seek(end)
        self._file.truncate()

    def write(self, trajectory: Trajectory) -> None:
        """Raises ContractError when the trajectory holds what JSON cannot say."""
        if trajectory.job.id in self.jobs:
            return
        try:  # ASCII, because a policy may well write half a surrogate pair
            line = json.dumps(record(trajectory), separators=(",", ":"), allow_nan=False)
        except ValueError as e:
            raise ContractError(f"job {trajectory.job.id}: cannot be exported: {e}") from e
        self._file.write(line.encode() + b"\n")
        self.jobs.add(trajectory.job.id)

    def sync(self) -> None:
        """Returns once everything written is on the disk; only then may a batch be acknowledged."""
        self._file.flush()
        if self._regular:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "TrajectoryFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path, number: int) -> dict[str, Json]:
    """Line `number` of the file, counted from 1. Raises SettingsError or ContractError."""
    try:
        with path.open("rb") as f:
            for at, line in enumerate(f, 1):
                if at == number:
                    return _parse(line, f"{path}:{number}")
    except OSError as e:
        raise SettingsError(f"cannot read {path}: {e.strerror}") from e
    raise SettingsError(f"{path} has no line {number}")


def _parse(line: bytes, where: str) -> dict[str, Json]:
    try:
        found = json.loads(line)
    except ValueError as e:
        raise ContractError(f"{where} is not a line of JSON: {e}") from e
    if not isinstance(found, dict) or not isinstance(found.get("job"), str):
        raise ContractError(f"{where} is not an exported trajectory: it names no job")
    return found

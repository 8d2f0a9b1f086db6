"""Trajectories in a JSON Lines file, one a line, durable before anybody hears of them.

A crash leaves whole lines and at most one torn one at the end, which the next opening cuts off. A job is written once,
however often its group comes, and one process at a time writes. What a line holds is `rollq.export.record`'s business.
"""

import fcntl
import json
import os
import re
import stat
from pathlib import Path
from types import TracebackType

from rollq.batch import Batch
from rollq.errors import ContractError, RollqError, SettingsError
from rollq.export.record import record
from rollq.job import Json
from rollq.trajectory import Trajectory

OURS = re.compile(rb'\{"job":"([A-Za-z0-9._/-]+)",.+\}\n', re.DOTALL)
"""A line as it is written here."""
START = b'{"job":"'
"""Its beginning, by which a torn one is known from somebody's text."""


class TrajectoryFile:
    """A file open for writing, locked until it is closed or its process ends."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """`append` keeps what is there, else `begin` empties the file.

        Raises SettingsError when it cannot be written or somebody else writes it, ContractError when something else is
        there.
        """
        self.path = path
        self.repeated = 0
        """Trajectories that came although they were in the file: not written again."""
        self._lines: dict[str, int] = {}
        """What is in the file: by job, its line's hash, which tells one episode from another."""
        self._begun = append
        self._fd = _open(path)
        self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)  # not a pipe, not /dev/null
        try:
            if self._regular:
                _lock(self._fd, path)
                if append:
                    os.truncate(self._fd, self._resume())
                    os.lseek(self._fd, 0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    def _resume(self) -> int:
        """Reads which jobs are there; returns where the last whole line ends."""
        end, line = 0, b"\n"
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and _is_torn(line):
                    return end
                whole = line if line.endswith(b"\n") else line + b"\n"
                ours = OURS.fullmatch(whole)  # a large file is not parsed for its jobs alone
                job_id = ours[1].decode() if ours else _parse(line, f"{self.path}:{number}")["job"]
                self._lines[job_id] = hash(whole)
                end += len(line)
        if line.endswith(b"\n"):
            return end
        os.pwrite(self._fd, b"\n", end)  # an editor cut it off
        return end + 1

    def begin(self) -> None:
        """Empty a file that is not appended to; the first save does so at the latest."""
        if self._regular and not self._begun:
            os.truncate(self._fd, 0)
        self._begun = True

    def save(self, batch: Batch) -> bool:
        """True: all of it is on the disk, and it may be acknowledged. False: a trajectory cannot be exported, so that
        its job was rejected and nothing of the batch is held any more.

        Raises SettingsError when the file has another episode of one of the jobs, RollqError when it cannot be written,
        NotHeld.
        """
        lines: dict[str, bytes] = {}
        for trajectory in batch.trajectories:
            try:
                lines[trajectory.job.id] = _line(trajectory)
            except ContractError as e:
                batch.reject(trajectory.job.id, str(e))
                return False
        new = [line for job_id, line in lines.items() if not self._has(job_id, line)]
        try:
            self._append(b"".join(new))
        except OSError as e:
            raise RollqError(
                f"cannot write {self.path}: {e.strerror}. What was acknowledged is in it; the rest comes again"
            ) from e
        self._lines.update({job_id: hash(line) for job_id, line in lines.items()})
        self.repeated += len(lines) - len(new)
        return True

    def _has(self, job_id: str, line: bytes) -> bool:
        if self._lines.get(job_id, hash(line)) != hash(line):
            raise SettingsError(
                f"{self.path} has another episode of job {job_id}, from an earlier run of that name perhaps: write to"
                " another file. Nothing of this one is lost; it comes again within a minute"
            )
        return job_id in self._lines

    def _append(self, data: bytes) -> None:
        self.begin()
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]
        if self._regular:
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

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


def _is_torn(line: bytes) -> bool:
    """Begun as a line is written here, and not ended."""
    try:
        json.loads(line)
    except ValueError:
        return START.startswith(line[: len(START)])
    return False


def _parse(line: bytes, where: str) -> dict[str, Json]:
    try:
        found = json.loads(line)
    except ValueError as e:
        raise ContractError(f"{where} is not a line of JSON: {e}") from e
    if not isinstance(found, dict) or not isinstance(found.get("job"), str):
        raise ContractError(f"{where} is not an exported trajectory: it names no job")
    return found


def _open(path: Path) -> int:
    new = not path.exists()
    try:
        # A pipe that one reads oneself would never break.
        fd = os.open(path, os.O_RDWR | os.O_CREAT if new or path.is_file() else os.O_WRONLY, 0o666)
        if new:
            _sync_folder(path)
    except OSError as e:
        raise SettingsError(f"cannot write {path}: {e.strerror}") from e
    return fd


def _sync_folder(path: Path) -> None:
    """A new file's name is not durable before its folder is."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise SettingsError(
            f"{path} is being written by another process: wait for its end, or name another file"
        ) from e
    except OSError:
        pass  # a file system that knows no locks


def _line(trajectory: Trajectory) -> bytes:
    """Raises ContractError when the trajectory holds what JSON cannot say."""
    found = record(trajectory)
    try:  # ASCII, because a policy may well write half a surrogate pair
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except ValueError as e:
        raise ContractError(f"job {trajectory.job.id}: cannot be exported: {e}") from e

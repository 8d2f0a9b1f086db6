"""Trajectories in a JSON Lines file, one a line, durable before anybody hears of them.

A crash leaves whole lines and at most one torn one at the end, which the next opening cuts off. A job is written once,
however often its group comes, and one process at a time writes. What a line holds is `rollq.export`'s business.
"""

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rollq.batch import Batch
from rollq.errors import ContractError, RollqError, SettingsError
from rollq.export import record
from rollq.job import Json
from rollq.trajectory import Trajectory


class TrajectoryFile:
    """A file open for writing, locked until it is closed or its process ends."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """`append` keeps what is there, else the file is emptied.

        Raises SettingsError when it cannot be written or somebody else writes it, ContractError when something else is
        there.
        """
        self.path = path
        self.repeated = 0
        """Trajectories that came although they were in the file: not written again."""
        self._episodes: dict[str, int] = {}
        """What is in the file: by job, what tells its episode from another."""
        self._fd = _open(path)
        self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)  # not a pipe, not /dev/null
        try:
            if self._regular:
                _lock(self._fd, path)
                os.truncate(self._fd, self._resume() if append else 0)
                os.lseek(self._fd, 0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    def _resume(self) -> int:
        """Reads which episodes are there; returns where the last whole line ends."""
        end = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                found = _parse(line, f"{self.path}:{number}")
                self._episodes[found["job"]] = _episode(found)
                end += len(line)
        return end

    def save(self, batch: Batch) -> bool:
        """True: all of it is on the disk, and it may be acknowledged. False: a trajectory cannot be exported, so that
        its job was rejected and nothing of the batch is held any more.

        Raises SettingsError when the file has another episode of one of the jobs, RollqError when it cannot be written,
        NotHeld.
        """
        lines: dict[str, tuple[int, bytes]] = {}
        for trajectory in batch.trajectories:
            try:
                lines[trajectory.job.id] = _line(trajectory)
            except ContractError as e:
                batch.reject(trajectory.job.id, str(e))
                return False
        new = [line for job_id, (episode, line) in lines.items() if not self._has(job_id, episode)]
        try:
            self._append(b"".join(new))
        except OSError as e:
            raise RollqError(
                f"cannot write {self.path}: {e.strerror}. What was acknowledged is in it; the rest comes again"
            ) from e
        self._episodes.update({job_id: episode for job_id, (episode, _) in lines.items()})
        self.repeated += len(lines) - len(new)
        return True

    def _has(self, job_id: str, episode: int) -> bool:
        known = self._episodes.get(job_id, episode)
        if known != episode:
            raise SettingsError(
                f"{self.path} has another episode of job {job_id}, from an earlier run of that name perhaps: write to"
                " another file. Nothing of this one is lost; it comes again within a minute"
            )
        return job_id in self._episodes

    def _append(self, data: bytes) -> None:
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


def _line(trajectory: Trajectory) -> tuple[int, bytes]:
    """Its episode and its line. Raises ContractError when it holds what JSON cannot say."""
    found = record(trajectory)
    try:  # ASCII, because a policy may well write half a surrogate pair
        line = json.dumps(found, separators=(",", ":"), allow_nan=False)
    except ValueError as e:
        raise ContractError(f"job {trajectory.job.id}: cannot be exported: {e}") from e
    return _episode(found), line.encode() + b"\n"


def _episode(found: Mapping[str, Json]) -> int:
    """A number that differs when the same job was played anew, in this process; what else a line holds may change with
    rollq's version."""
    return hash(json.dumps([found.get("tokens"), found.get("reward")]))

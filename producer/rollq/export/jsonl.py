"""Trajectories in a JSON Lines file: one per line, and on disk before `save` returns.

A crash leaves whole lines and at most one torn line at the end, which the next opening cuts off. A job is written once,
however often its group comes. One process at a time writes. `rollq.export.record` decides what a line holds.
"""

import fcntl
import json
import logging
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path

from rollq.errors import ContractError, RollqError, SettingsError
from rollq.export.record import record
from rollq.job import Json
from rollq.trajectory import Trajectory

log = logging.getLogger("rollq")

WHOLE_LINE = re.compile(rb'\{"job":"([A-Za-z0-9._/-]+)",(?:"began":([0-9.]+),)?.+\}\n', re.DOTALL)
"""Matches a line that this module wrote."""
START = b'{"job":"'
"""How such a line starts. This tells a torn line from the text of another program."""
CACHE_KIB = 16 * 1024
"""Most memory, in KiB, for what is known of a file's lines: enough for some 200,000. The rest is on disk."""


class Unexportable(ContractError):
    """This trajectory cannot be written as JSON. The caller rejects its job."""

    job_id: str = ""


class TrajectoryFile:
    """A file open for writing, locked until it is closed or its process ends."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """`append` keeps the file's lines, else `begin` empties it.

        Raises SettingsError when the file cannot be written or another process writes it, ContractError when it holds
        something other than trajectories.
        """
        self.path = path
        self.repeated = 0
        """Trajectories that were in the file already and were not written again."""
        self.run_began: Callable[[], float] = lambda: inf
        """When the run was first submitted to, Unix seconds. It tells an episode of this run from one of an earlier run
        of that name."""
        self._lines = _Lines()
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
        """Reads which jobs are in the file. Returns where the last whole line ends."""
        end, line = 0, b"\n"
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and _is_torn(line):
                    return end
                whole = line if line.endswith(b"\n") else line + b"\n"
                written_here = WHOLE_LINE.fullmatch(whole)  # faster than parsing the whole line for its job
                job_id = written_here[1].decode() if written_here else _parse(line, f"{self.path}:{number}")["job"]
                began = float(written_here[2] or 0) if written_here else 0.0
                self._lines.add([(job_id, hash(whole), began)])
                end += len(line)
        if line.endswith(b"\n"):
            return end
        os.pwrite(self._fd, b"\n", end)  # an editor removed it
        return end + 1

    def begin(self) -> None:
        """Empty the file, unless it is appended to. The first save does so at the latest."""
        if self._regular and not self._begun:
            os.truncate(self._fd, 0)
        self._begun = True

    def save(self, trajectories: Iterable[Trajectory]) -> None:
        """Write the trajectories. All of them are on disk when it returns, and none when it raises Unexportable or
        SettingsError.

        A job whose acknowledgement Redis has lost may come again with another episode: the file keeps the first. Raises
        Unexportable for a trajectory that JSON cannot hold, SettingsError when the file has an episode of one of the
        jobs from an earlier run of that name, RollqError when the file cannot be written.
        """
        trajectories = list(trajectories)
        began = {trajectory.job.id: trajectory.header.at for trajectory in trajectories}
        lines = {trajectory.job.id: _line(trajectory) for trajectory in trajectories}
        new = {job_id: line for job_id, line in lines.items() if not self._has(job_id, line)}
        try:
            self._append(b"".join(new.values()))
        except OSError as e:
            raise RollqError(
                f"cannot write {self.path}: {e.strerror}. It holds everything that was acknowledged; the rest will be"
                " handed out again"
            ) from e
        self._lines.add((job_id, hash(line), began[job_id]) for job_id, line in new.items())
        self.repeated += len(lines) - len(new)

    def _has(self, job_id: str, line: bytes) -> bool:
        if not (known := self._lines.get(job_id)):
            return False
        known_hash, began = known
        if known_hash != hash(line):
            if began < self.run_began():
                raise SettingsError(
                    f"{self.path} has another episode of job {job_id}, from before this run began: write to another"
                    " file. The new episode is not lost; it is handed out again within a minute"
                )
            log.warning("job %s came again with another episode: %s keeps the first", job_id, self.path)
        return True

    def _append(self, data: bytes) -> None:
        self.begin()
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]
        if self._regular:
            os.fsync(self._fd)

    def close(self) -> None:
        self._lines.close()
        os.close(self._fd)

    def __enter__(self) -> "TrajectoryFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Lines:
    """Which jobs are in the file, a hash of each one's line, which tells one episode from another, and its age.

    They are in a temporary database on disk, which SQLite deletes when it is closed: a file may have millions of lines.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")  # nothing is ever rolled back
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._database.execute("CREATE TABLE line (job TEXT PRIMARY KEY, hash INTEGER, began REAL) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def add(self, lines: Iterable[tuple[str, int, float]]) -> None:
        """Job, hash and when the episode began. A job that is there already gets the new ones."""
        self._database.executemany("INSERT OR REPLACE INTO line VALUES (?, ?, ?)", lines)

    def get(self, job_id: str) -> tuple[int, float] | None:
        """Hash, and when the episode began: Unix seconds, 0.0 where the line does not say."""
        found = self._database.execute("SELECT hash, began FROM line WHERE job = ?", (job_id,)).fetchone()
        return None if found is None else (int(found[0]), float(found[1]))

    def close(self) -> None:
        self._database.close()


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
        # Opened for reading too, a pipe would never break when its reader goes away.
        fd = os.open(path, os.O_RDWR | os.O_CREAT if new or path.is_file() else os.O_WRONLY, 0o666)
        if new:
            _sync_folder(path)
    except OSError as e:
        raise SettingsError(f"cannot write {path}: {e.strerror}") from e
    return fd


def _sync_folder(path: Path) -> None:
    """The name of a new file is durable only once its folder is."""
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
        pass  # a file system without locks


def _line(trajectory: Trajectory) -> bytes:
    try:
        # ASCII, because a policy can write half a surrogate pair.
        return json.dumps(record(trajectory), separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except ValueError as e:
        unreadable = isinstance(e, ContractError)  # and then its text names the job
        error = Unexportable(str(e) if unreadable else f"job {trajectory.job.id}: cannot be exported: {e}")
        error.job_id = trajectory.job.id
        raise error from e

"""Writes trajectories to a JSON Lines file: one per line, and on disk before `save` returns.

A crash leaves complete lines and at most one torn line at the end, which the next opening cuts off.
A job is written once, however often its group comes. One process at a time writes.
`rollq.export.record` decides what a line holds.
"""

import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, Self

from rollq.errors import ContractError, RollqError, SettingsError
from rollq.export.jsonl import Identity, is_torn, parse_line
from rollq.export.record import digest, encode
from rollq.trajectory import Trajectory

log = logging.getLogger("rollq")

CACHE_KIB = 16 * 1024
"""Most memory, in KiB, for the jobs of a file: enough for some 200,000. The rest is on disk."""


class Line(NamedTuple):
    """A trajectory that is about to be written."""

    trajectory: Trajectory
    text: bytes
    digest: int

    @property
    def job_id(self) -> str:
        return self.trajectory.job.id


class WrittenJobs:
    """The jobs of a file: the digest of each one's episode, and when that episode began.

    They are in a temporary database, because a file may have millions of jobs. SQLite deletes it
    when it is closed.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")  # nothing is ever rolled back
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._database.execute(
            "CREATE TABLE jobs (id TEXT PRIMARY KEY, digest INTEGER, began REAL) WITHOUT ROWID"
        )
        self._database.execute("BEGIN")

    def add(self, jobs: Iterable[tuple[str, int, float]]) -> None:
        """Adds id, digest and start of each episode, in place of what the file had of the job."""
        self._database.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", jobs)

    def get(self, job_id: str) -> tuple[int, float] | None:
        """Digest, and when the episode began: Unix seconds, 0.0 where the file does not say."""
        row = self._database.execute(
            "SELECT digest, began FROM jobs WHERE id = ?", (job_id,)
        ).fetchone()
        return None if row is None else (int(row[0]), float(row[1]))

    def close(self) -> None:
        self._database.close()


class TrajectoryFile:
    """A file open for writing, locked until it is closed or its process ends."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """`append` keeps the file's lines, else `begin` empties it.

        Raises SettingsError when the file cannot be written or another process writes it.
        Raises ContractError when it holds something other than trajectories.
        """
        self.path = path
        self.repeated = 0
        """Trajectories that were in the file already and were not written again."""
        self.run_began: Callable[[], float] = lambda: inf
        """Unix time at which the run was first submitted to. It tells an episode of this run from
        one of an earlier run of that name.
        """
        self._fd = _open(path)
        self._written = WrittenJobs()
        self._is_begun = append
        self._is_regular = stat.S_ISREG(os.fstat(self._fd).st_mode)  # not a pipe, not /dev/null
        try:
            if self._is_regular:
                _lock(self._fd, path)
                if append:
                    os.truncate(self._fd, self._read_jobs())
                    os.lseek(self._fd, 0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    def _read_jobs(self) -> int:
        """Notes the jobs of the file. Returns where its last complete line ends."""
        end = 0
        line = b"\n"
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if is_torn(line):
                    return end
                record = parse_line(line, f"{self.path}:{number}", Identity)
                began = record.get("began")
                start = began if isinstance(began, float) else 0.0
                written = record["job"], digest(line.rstrip(b"\n") + b"\n"), start
                try:
                    self._written.add([written])
                except UnicodeEncodeError as e:
                    raise ContractError(f"{self.path}:{number}: its job is no text: {e}") from e
                end += len(line)
        if line.endswith(b"\n"):
            return end
        os.pwrite(self._fd, b"\n", end)  # an editor removed it
        return end + 1

    def begin(self) -> None:
        """Empties the file, unless it is appended to. The first save does so at the latest."""
        if self._is_regular and not self._is_begun:
            os.truncate(self._fd, 0)
        self._is_begun = True

    def save(self, trajectories: Iterable[Trajectory]) -> None:
        """Writes the trajectories. All of them are on disk when it returns, and none when it raises
        Unexportable or SettingsError.

        A job whose acknowledgement Redis has lost may come again with another episode: the file
        keeps the first. Raises Unexportable for a trajectory that JSON cannot hold. Raises
        SettingsError when the file has an episode of one of the jobs from an earlier run of that
        name. Raises RollqError when the file cannot be written.
        """
        lines: dict[str, Line] = {}
        for trajectory in trajectories:
            text = encode(trajectory)
            lines[trajectory.job.id] = Line(trajectory, text, digest(text))
        new = [line for line in lines.values() if not self._has(line)]
        try:
            self.begin()
            self._write(new)
        except OSError as e:
            raise RollqError(
                f"cannot write {self.path}: {e.strerror or e}. It holds everything that was "
                "acknowledged; the rest will be handed out again"
            ) from e
        try:
            self._written.add((line.job_id, line.digest, line.trajectory.header.at) for line in new)
        except sqlite3.Error as e:
            raise RollqError(
                f"cannot keep which jobs {self.path} has ({e}): make room in the temporary folder "
                "($SQLITE_TMPDIR, else $TMPDIR). All of the batch is in the file"
            ) from e
        self.repeated += len(lines) - len(new)

    def _has(self, line: Line) -> bool:
        written = self._written.get(line.job_id)
        if not written:
            return False
        written_digest, began = written
        if written_digest == line.digest:
            return True
        if began < self.run_began():
            raise SettingsError(
                f"{self.path} has another episode of job {line.job_id}, from before this run "
                "began: write to another file. The new episode is not lost; it is handed out again"
            )
        log.warning(
            "job %s came again with another episode: %s keeps the first", line.job_id, self.path
        )
        return True

    def _write(self, new: Sequence[Line]) -> None:
        """Writes all of them, durably. Raises OSError."""
        if not new:
            return
        left = memoryview(b"".join(line.text for line in new))
        while left:
            left = left[os.write(self._fd, left) :]
        if self._is_regular:
            os.fsync(self._fd)

    def close(self) -> None:
        self._written.close()
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _open(path: Path) -> int:
    """Opens the file, or makes it. Raises SettingsError."""
    is_new = not path.exists()
    flags = os.O_WRONLY  # opened for reading too, a pipe would never break when its reader goes
    if is_new or path.is_file():
        flags = os.O_RDWR | os.O_CREAT
    try:
        fd = os.open(path, flags, 0o666)
        if is_new:
            _sync_folder(path.parent)
    except OSError as e:
        raise SettingsError(f"cannot write {path}: {e.strerror}") from e
    return fd


def _sync_folder(folder: Path) -> None:
    """The name of a new file is durable only once its folder is. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    """Locks the file for this process. Raises SettingsError when another process writes it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise SettingsError(
            f"{path} is being written by another process: wait for its end, or name another file"
        ) from e
    except OSError:
        pass  # a file system without locks

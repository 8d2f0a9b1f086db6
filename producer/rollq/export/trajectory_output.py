"""What the formats of an exported file share: durable before `save` returns, each job once, one
process at a time.
"""

import fcntl
import logging
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from rollq.errors import RollqError, SettingsError
from rollq.export.record import digest, encode
from rollq.trajectory import Trajectory

log = logging.getLogger("rollq")

CACHE_KIB = 16 * 1024
"""Most memory, in KiB, for what is known of a file's jobs: enough for some 200,000. The rest is on
disk.
"""


class Exported(NamedTuple):
    """A trajectory that is about to be written."""

    trajectory: Trajectory
    line: bytes
    """Its record as a line of JSON."""
    digest: int


class KnownJobs:
    """The jobs that a file has: each one's digest, which tells one episode from another, and when
    that episode began.

    They are in a temporary database, because a file may have millions of jobs. SQLite deletes it
    when it is closed.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")  # nothing is ever rolled back
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._database.execute(
            "CREATE TABLE known (job TEXT PRIMARY KEY, digest INTEGER, began REAL) WITHOUT ROWID"
        )
        self._database.execute("BEGIN")

    def add(self, jobs: Iterable[tuple[str, int, float]]) -> None:
        """Job, digest and when the episode began. A job that is there already gets the new ones."""
        self._database.executemany("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", jobs)

    def get(self, job_id: str) -> tuple[int, float] | None:
        """Digest, and when the episode began: Unix seconds, 0.0 where the file does not say."""
        found = self._database.execute(
            "SELECT digest, began FROM known WHERE job = ?", (job_id,)
        ).fetchone()
        return None if found is None else (int(found[0]), float(found[1]))

    def close(self) -> None:
        self._database.close()


class TrajectoryOutput(ABC):
    """A file or folder open for writing, locked until it is closed or its process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.repeated = 0
        """Trajectories that were in the file already and were not written again."""
        self.run_began: Callable[[], float] = lambda: inf
        """When the run was first submitted to, Unix seconds. It tells an episode of this run from
        one of an earlier run of that name.
        """
        self._known = KnownJobs()

    @abstractmethod
    def begin(self) -> None:
        """Empty the file, unless it is appended to. The first save does so at the latest."""

    @abstractmethod
    def _write(self, new: Sequence[Exported]) -> None:
        """Write all of them, durably, or none. Raises OSError, Unexportable."""

    def save(self, trajectories: Iterable[Trajectory]) -> None:
        """Write the trajectories. All of them are on disk when it returns, and none when it raises
        Unexportable or SettingsError.

        A job whose acknowledgement Redis has lost may come again with another episode: the file
        keeps the first. Raises Unexportable for a trajectory that the format cannot hold,
        SettingsError when the file has an episode of one of the jobs from an earlier run of that
        name, RollqError when the file cannot be written.
        """
        lines = {trajectory.job.id: (trajectory, encode(trajectory)) for trajectory in trajectories}
        all_of_them = [
            Exported(trajectory, line, digest(line)) for trajectory, line in lines.values()
        ]
        new = [exported for exported in all_of_them if not self._has(exported)]
        try:
            self.begin()
            if new:
                self._write(new)
        except OSError as e:
            raise RollqError(
                f"cannot write {self.path}: {e.strerror or e}. It holds everything that "
                "was acknowledged; the rest will"
                " be handed out again"
            ) from e
        self._known.add((e.trajectory.job.id, e.digest, e.trajectory.header.at) for e in new)
        self.repeated += len(lines) - len(new)

    def _has(self, exported: Exported) -> bool:
        job_id = exported.trajectory.job.id
        if not (known := self._known.get(job_id)):
            return False
        known_digest, began = known
        if known_digest != exported.digest:
            if began < self.run_began():
                raise SettingsError(
                    f"{self.path} has another episode of job {job_id}, from before this "
                    "run began: write to another"
                    " file. The new episode is not lost; it is handed out again"
                )
            log.warning(
                "job %s came again with another episode: %s keeps the first", job_id, self.path
            )
        return True

    def close(self) -> None:
        self._known.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading. Raises SettingsError when it cannot be read."""
    try:
        with path.open("rb") as f:
            yield f
    except OSError as e:
        raise SettingsError(f"cannot read {path}: {e.strerror}") from e


def lock(fd: int, path: Path) -> None:
    """Lock an open file or folder for this process. Raises SettingsError when another process
    writes it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise SettingsError(
            f"{path} is being written by another process: wait for its end, or name another file"
        ) from e
    except OSError:
        pass  # a file system without locks


def sync_folder(folder: Path) -> None:
    """The name of a new file is durable only once its folder is. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]

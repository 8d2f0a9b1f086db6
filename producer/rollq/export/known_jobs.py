"""Which jobs an exported file has, kept on disk: a file may have millions of them."""

import sqlite3
from collections.abc import Iterable

CACHE_KIB = 16 * 1024
"""Most memory, in KiB, for what is known of a file's jobs: enough for some 200,000. The rest is on disk."""


class KnownJobs:
    """Each job's digest, which tells one episode from another, and when that episode began.

    They are in a temporary database, which SQLite deletes when it is closed.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")  # nothing is ever rolled back
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._database.execute("CREATE TABLE known (job TEXT PRIMARY KEY, digest INTEGER, began REAL) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def add(self, jobs: Iterable[tuple[str, int, float]]) -> None:
        """Job, digest and when the episode began. A job that is there already gets the new ones."""
        self._database.executemany("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", jobs)

    def get(self, job_id: str) -> tuple[int, float] | None:
        """Digest, and when the episode began: Unix seconds, 0.0 where the file does not say."""
        found = self._database.execute("SELECT digest, began FROM known WHERE job = ?", (job_id,)).fetchone()
        return None if found is None else (int(found[0]), float(found[1]))

    def close(self) -> None:
        self._database.close()

"""Whether a process still runs, for tests that end some."""

import os
from pathlib import Path


def alive(pid: int) -> bool:
    """One that only waits to be collected does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False

"""Whether a process runs."""

import os
from pathlib import Path


def alive(pid: int) -> bool:
    """False for an unknown pid, and for a zombie where /proc shows one."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False

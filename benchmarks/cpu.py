"""CPU time of a process, all its threads together, from /proc: Linux only."""

import os
import sys
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
"""The kernel's unit of CPU time, and how exact `cpu_seconds` is."""


def require_linux() -> None:
    """Exit with a message where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        sys.exit("this benchmark reads the CPU time of its children from /proc: it runs on Linux only")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process so far, in seconds."""
    # The name, in parentheses, may hold anything; utime and stime are the 14th and 15th field of the line.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S

"""CPU time and memory of a process, from /proc: Linux only."""

import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
"""The kernel's unit of CPU time, and how exact `cpu_seconds` is."""


def require_linux() -> None:
    """Exits with a message where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        sys.exit(
            "this benchmark reads the CPU time of its children from /proc: it runs on Linux only"
        )


def cpu_seconds(pid: int) -> float:
    """User and system time of the process so far, in seconds, with that of its children, running or
    ended.
    """
    spent, children = _all_processes()
    return sum(spent.get(one, 0.0) for one in _descendants(pid, children))


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    return _descendants(pid, _all_processes()[1])


def _all_processes() -> tuple[dict[int, float], dict[int, list[int]]]:
    """The CPU seconds of each process, and its children."""
    spent = {}
    children = defaultdict[int, list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may hold anything; behind it stand the state and the
            # parent's pid.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        children[int(fields[1])].append(int(folder.name))
        # utime, stime, cutime and cstime are the 14th to 17th field of the line
        spent[int(folder.name)] = sum(map(int, fields[11:15])) * TICK_S
    return spent, children


def _descendants(pid: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def proportional_mb(pids: Sequence[int]) -> float:
    """Megabytes (10^6 bytes) of these processes in memory, with pages that several share counted
    once. Needs the rights to look at them.
    """
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.partition("\nPss:")[2].split()[0]) * 1024
    return total / 1e6


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    """Megabytes (10^6 bytes) of the process in memory; with "VmHWM" the most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{field}:"))

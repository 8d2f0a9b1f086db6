"""What `rollq doctor` says of environments: their first tasks are played by ground truth, which
must earn 1.0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rollq.errors import RollqError
from rollq.servers.health import Finding, Level
from rollq_worker.commands.env.check import check_environment, chosen, opened
from rollq_worker.environments import domain, names, origins

TASKS = 4
"""Number of tasks of an environment that are played, from all over its first split."""
INSTALL = (
    "check the name, and that its package is installed on every worker; `rollq env "
    "check NAME` says more"
)


def played_here(asked: Sequence[str]) -> tuple[list[str], list[str]]:
    """The environments to check: those that were asked for, else all of this machine. Then also
    those of rollq whose package is not installed. Raises RollqError.
    """
    if asked:
        return list(dict.fromkeys(asked)), []
    absent: list[str] = []
    present: list[str] = []
    optional = {name for name, origin in origins().items() if origin.startswith("rollq[")}
    for name in names():
        try:
            domain(name)
        except RollqError:
            (absent if name in optional else present).append(name)
        else:
            present.append(name)
    return present, absent


def check(name: str) -> list[Finding]:
    """Play some tasks of the environment. Raises RollqError for one that cannot be loaded."""
    title, environment = f"environment {name}", domain(name)
    split, count = next(iter(environment.splits().items()))
    report = check_environment(environment, split, chosen(count, TASKS))
    tools = next(iter(report.tools), None)
    details = {
        "environment": name,
        "version": environment.version,
        "tools": tools,
        "tasks": report.played,
    }
    known = "" if tools is None else f"{tools} tools, "  # None: no task could be opened
    what = f"{environment.version}, {known}{report.played} of {count} tasks of {split}"
    if report.problems:
        remedy = f"correct the environment; `rollq env check {name}` plays more tasks"
        first, *more = report.problems
        return [Finding(title, Level.FAIL, f"{what}: {first}", remedy, more[:5], details)]
    if not report.rewards:
        says = f"{what}: no ground truth, so it is not known whether a perfect agent earns 1.0"
        return [Finding(title, Level.WARN, says, "give its tasks moves", report.notes[1:], details)]
    return [
        Finding(title, Level.OK, f"{what}: the ground truth earns 1.0", "", report.notes, details)
    ]


def tools_of(name: str) -> Sequence[Mapping[str, Any]] | None:
    """The tools of its first task; None when it cannot be opened, which its own check says."""
    try:
        environment = domain(name)
        with opened(environment, next(iter(environment.splits())), 0) as first:
            return list(first.tools)
    except (Exception, SystemExit):  # other people's code
        return None

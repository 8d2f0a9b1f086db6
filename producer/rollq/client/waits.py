"""Log messages for long waits.

Producers and consumers meet workers only in Redis, so each sees only that nothing happens.
"""

import logging
import re
import time
from collections.abc import Callable

from rollq.errors import LedgerError
from rollq.job import Purpose
from rollq.ledger.reader import LedgerReader, runs
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.snapshot.fleet import read_one_run
from rollq.snapshot.holdups import RunView, find_holdup, other_runs, run_holdup

log = logging.getLogger("rollq")

FIRST_S = 5.0
"""Seconds of waiting after which a wait is explained for the first time."""
LOOK_S = 10.0
"""Seconds between two looks at a wait after that. A look takes a handful of commands."""
REPEAT_S = 60.0
"""Seconds after which the same explanation is said again."""
CHANGES = re.compile(r"\S*\d\S*")
"""Words that differ between two explanations of one wait: counts, seconds, jobs, workers."""


def explain(
    reader: LedgerReader,
    purpose: Purpose | None = None,
    *,
    wanted: int = 0,
    ahead: int = 0,
) -> str:
    """The run's holdup, and what to do; empty while the wait is an ordinary one.

    A consumer gives its purpose and the number of groups that it wants, a producer the limit at
    which it waits, and anybody else neither. It only reads, and raises no error of Redis: the wait
    itself meets the same one.
    """
    try:
        fleet = read_one_run(reader)
    except LedgerError as e:
        return str(e)
    except CONNECTION_ERRORS:
        return ""  # each call that waits for Redis says so itself
    if purpose is None:
        return run_holdup(fleet)
    view = RunView(fleet=fleet, run=fleet.runs[0], purpose=purpose, asks_for=wanted, ahead=ahead)
    holdup = find_holdup(view)
    return holdup.text if holdup else ""


class WaitLog:
    """Logs the explanation of one wait after FIRST_S seconds, when it has changed, and once a
    minute while it stays.
    """

    def __init__(self, explain: Callable[[], str]) -> None:
        self._explain = explain
        self._next = time.monotonic() + FIRST_S
        self._said: dict[str, float] = {}
        """Time at which each explanation was logged last."""

    def log_when_due(self) -> None:
        """Called between two tries. Logs the explanation when it is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_S
        text = self._explain()
        same = CHANGES.sub("", text)
        if text and now - self._said.get(same, float("-inf")) >= REPEAT_S:
            self._said[same] = now
            log.warning("%s", text)


def warn_of_unknown_run(reader: LedgerReader) -> None:
    there = other_runs(reader.run, runs(reader.redis))
    log.warning("run %s does not exist yet; %s", reader.run, there)

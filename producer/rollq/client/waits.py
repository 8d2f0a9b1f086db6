"""What producers and consumers say while they wait: who waits for whom, as the fleet's snapshot
shows it.

They meet workers only in Redis, so each sees only that nothing happens.
"""

import logging
import re
import time
from collections.abc import Callable

from rollq.errors import LedgerError
from rollq.job import Purpose
from rollq.ledger.reader import LedgerReader
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.snapshot.diagnosis import problem, run_holdup
from rollq.snapshot.fleet import read_one_run
from rollq.snapshot.run_wait import RunWait

log = logging.getLogger("rollq")

FIRST_S = 5.0
"""Seconds of waiting after which a wait is explained for the first time."""
LOOK_S = 10.0
"""Seconds between two looks at a wait after that. A look takes a handful of commands."""
EVERY_S = 60.0
"""Seconds after which the same explanation is said again."""
OTHER_EACH_TIME = re.compile(r"\S*\d\S*")
"""What differs between two explanations of the same wait: counts, seconds, jobs, workers."""


def explain(
    reader: LedgerReader,
    purpose: Purpose = Purpose.TRAIN,
    *,
    wanted: int = 0,
    own: int = 0,
    ahead: int = 0,
) -> str:
    """Who waits for whom in this run and what to do; empty when the wait is an ordinary one.

    A consumer gives the number of groups that it wants and those that it holds itself, a producer
    the limit at which it waits, and anybody else neither. It only reads, and raises no error of
    Redis: the wait itself meets the same one.
    """
    try:
        fleet = read_one_run(reader)
    except LedgerError as e:
        return str(e)
    except CONNECTION_ERRORS:
        return ""  # each call that waits for Redis says so itself
    return problem(
        RunWait(fleet=fleet, run=fleet.runs[0], purpose=purpose, wants=wanted, own=own, limit=ahead)
    )


def holdup(
    reader: LedgerReader, purpose: Purpose | None = None, *, wanted: int = 0, own: int = 0
) -> str:
    """What holds the run up and what to do: `explain`, or what is wrong with some workers or
    engines, and what an ordinary wait is for. Empty when nothing is pending and nothing died.

    Without a purpose, of both; a consumer gives its own. It only reads, and raises no error of
    Redis.
    """
    try:
        fleet = read_one_run(reader)
    except (LedgerError, *CONNECTION_ERRORS) as e:
        return str(e)
    (run,) = fleet.runs
    purposes = (purpose,) if purpose else tuple(Purpose)
    return run_holdup(
        [RunWait(fleet=fleet, run=run, purpose=each, wants=wanted, own=own) for each in purposes]
    )


class WaitLog:
    """Logs the explanation of one wait after FIRST_S seconds, when it has changed, and once a
    minute while it stays.
    """

    def __init__(self, explain: Callable[[], str]) -> None:
        self._explain = explain
        self._next = time.monotonic() + FIRST_S
        self._said: dict[str, float] = {}
        """When each explanation was logged last."""

    def look(self) -> None:
        """Called between two tries. Logs the explanation when it is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_S
        text = self._explain()
        same = OTHER_EACH_TIME.sub("", text)
        if text and now - self._said.get(same, float("-inf")) >= EVERY_S:
            self._said[same] = now
            log.warning("%s", text)

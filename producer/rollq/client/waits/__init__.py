"""Says of a wait who waits for whom, and what to do about it.

Producers, consumers and workers meet only in Redis, so each sees only that nothing happens. `explain` puts together
what the run's indexes, the waiting consumers, the waiting producer and the live workers tell, in one or two sentences
that are the same on every side. `holdup` also says what an ordinary wait is for.
"""

import logging
import re
import time
from collections.abc import Callable, Sequence

from rollq.client.waits.bottleneck import bottleneck
from rollq.client.waits.facts import Facts, read_facts
from rollq.client.waits.problems import other_runs, problem
from rollq.client.waits.troubles import troubles
from rollq.errors import LedgerError
from rollq.job import Purpose
from rollq.ledger.reader import LedgerReader
from rollq.ledger.workers.live_workers import LiveWorker

__all__ = ["WaitLog", "explain", "holdup", "other_runs"]

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
    workers: Sequence[LiveWorker] | None = None,
    refuses: str | None = None,
    partly: bool = False,
) -> str:
    """Who waits for whom in this run and what to do; empty when the wait is an ordinary one. With `partly`, also what
    is wrong with some workers or engines while others go on.

    A consumer gives the number of groups that it wants and those that it holds itself, a producer the limit at which it
    waits, and anybody else neither. `workers`: the live ones, and `refuses`: why Redis takes no writes, if they are
    known already. It only reads. It raises no LedgerError, because the wait itself meets the same one.
    """
    try:
        found = read_facts(reader, purpose, wanted=wanted, own=own, ahead=ahead, workers=workers, refuses=refuses)
        return _said(found, problem) or (_said(found, troubles) if partly else "")
    except LedgerError as e:
        return str(e)


def holdup(
    reader: LedgerReader,
    purpose: Purpose | None = None,
    *,
    wanted: int = 0,
    own: int = 0,
    workers: Sequence[LiveWorker] | None = None,
    refuses: str | None = None,
) -> str:
    """What holds the run up and what to do: `explain`, or what is wrong with some workers or engines, and what an
    ordinary wait is for. Empty when nothing is pending and nothing died.

    Without a purpose, of both; a consumer gives its own. It only reads, and raises no LedgerError.
    """
    purposes = (purpose,) if purpose else tuple(Purpose)
    try:
        facts = [
            read_facts(reader, each, wanted=wanted, own=own, workers=workers, refuses=refuses) for each in purposes
        ]
    except LedgerError as e:
        return str(e)
    said = (_said(each, about) for about in (problem, bottleneck) for each in facts)
    return next(filter(None, said), "")


def _said(facts: Facts, about: Callable[[Facts], str]) -> str:
    text = about(facts)
    return f"run {facts.run}: {text}" if text else ""


class WaitLog:
    """Logs the explanation of one wait after FIRST_S seconds, when it has changed, and once a minute while it stays."""

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

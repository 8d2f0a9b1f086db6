"""Weights that an engine serves, and their comparison with those that a call accepts.

An engine that was restarted, or that missed an update, serves older weights than the run has
published. The invariant: a reply whose weights the call does not accept is not kept
(`EngineClient.sample`). To ask the engine first is cheaper. It knows nothing of steps or of
published versions.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rollq_worker.engine.availability import OutageClock
from rollq_worker.remote.http_client import NoResponse

log = logging.getLogger(__name__)

Accepts = Callable[[str], bool]
"""Decides if weights of that version may sample. It may raise an error that stops the attempt."""
ASK_S = 1.0
"""Seconds between two questions to an engine whose weights are not accepted."""


class ServedWeights:
    """The version of one engine's weights, for all threads. The engine is asked when it is first
    needed, and again while its weights are refused.
    """

    def __init__(self, ask: Callable[[], str | None], name: str) -> None:
        """`ask` is `Server.weight_version`. `name` is the engine's, for people."""
        self._ask_server = ask
        self._name = name
        self._lock = threading.Lock()
        self._version: str | None = None
        """None: not known, so the engine is tried, and its reply tells."""
        self.is_reported = False
        """True if the engine reports its weights."""
        self._ask_at = 0.0  # monotonic time before which the engine is not asked again
        self._refused_at = float("-inf")
        self._warned_of: str | None = None

    @property
    def outdated(self) -> bool:
        """True if its weights were refused lately, and not accepted since."""
        return time.monotonic() - self._refused_at < 30.0

    def suit(self, accepts: Accepts) -> bool:
        """True if the engine may be sent a request, as far as it reports its weights."""
        before = self._version
        if before is not None and accepts(before):
            return self._note([])
        self._ask()
        version = self._version
        if version is None:
            return True
        is_accepted = version != before and accepts(version)
        return self._note([] if is_accepted else [version])

    def sampled(self, versions: Sequence[str], accepts: Accepts) -> bool:
        """True if a reply that weights of these versions sampled may be kept. The engine serves the
        last of them.
        """
        if self.is_reported and versions:
            self._version = versions[-1]
        return self._note([version for version in versions if not accepts(version)])

    def forget(self) -> None:
        """The engine may be another one now."""
        self._version = None
        self._ask_at = 0.0

    def _note(self, refused: Sequence[str]) -> bool:
        """Returns whether none of its weights were refused."""
        self._refused_at = time.monotonic() if refused else float("-inf")
        if refused and self._warned_of != refused[0]:
            self._warned_of = refused[0]
            log.warning(
                "the engine at %s serves weights %r, which a run does not take: they are older "
                "than the published ones, not published, or not those that its jobs are pinned to. "
                "Nothing of that run is sampled there until it serves others (rollq engines sync)",
                self._name,
                refused[0],
            )
        return not refused

    def _ask(self) -> None:
        if not self._lock.acquire(blocking=False):
            # another thread asks, and the engine may take its time
            return
        try:
            if time.monotonic() < self._ask_at:
                return
            self._ask_at = time.monotonic() + ASK_S
            self._version = self._ask_server()
            self.is_reported = self._version is not None
        except NoResponse as e:
            log.debug("the weights of the engine at %s are not known: %s", self._name, e)
        finally:
            self._lock.release()


class WeightWaits:
    """The calls that wait for an engine to serve weights that they accept. Their runs' deadlines
    stand still meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: dict[str, OutageClock] = {}
        """Clocks of the runs that ever waited."""

    @contextmanager
    def of(self, run: str) -> Iterator[None]:
        """A call of that run waits."""
        with self._lock:
            clock = self._clocks.setdefault(run, OutageClock())
        clock.start()
        try:
            yield
        finally:
            clock.stop()

    def __contains__(self, run: object) -> bool:
        """True if any call of that run waits."""
        return run in self._clocks and self._clocks[run].running

    def seconds(self, run: str) -> float:
        """Seconds so far in which any call of that run waited."""
        if run in self._clocks:
            return self._clocks[run].seconds
        return 0.0

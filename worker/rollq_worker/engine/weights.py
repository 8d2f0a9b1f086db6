"""Which weights an engine serves, and whether they are new enough for a call.

An engine that was restarted, or that missed an update, serves older weights than the run has
published. The invariant: a reply whose weights the call does not accept is not kept
(`SGLangEngine.sample`). To ask the engine first is cheaper. It knows nothing of steps or of what is
published.
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
"""Whether weights of that version may sample. It may raise what stops the attempt."""
ASK_S = 1.0
"""Seconds between two questions to an engine whose weights are not accepted."""


class ServedWeights:
    """The version of one engine's weights, for all threads. The engine is asked when it is first
    needed, and again while its weights are refused.
    """

    def __init__(self, get: Callable[[str], object], name: str) -> None:
        """`get` returns the JSON at a path, None if the server does not have it (a router), and may
        raise NoResponse. `name` is the engine's, for people.
        """
        self._get = get
        self._name = name
        self._lock = threading.Lock()
        self._version: str | None = None
        """None: not known, so the engine is tried, and its reply tells."""
        self.told = False
        """Whether the engine tells its weights."""
        self._ask_at = 0.0  # monotonic time before which the engine is not asked again
        self._refused_at = float("-inf")
        self._said: str | None = None

    @property
    def outdated(self) -> bool:
        """Whether its weights were refused lately, and not accepted since."""
        return time.monotonic() - self._refused_at < 30.0

    def suit(self, accepts: Accepts) -> bool:
        """Whether the engine may be sent a request, as far as it tells its weights."""
        known = self._version
        if known is not None and accepts(known):
            return self._note([])
        self._ask()
        version = self._version
        return version is None or self._note(
            [] if version != known and accepts(version) else [version]
        )

    def sampled(self, versions: Sequence[str], accepts: Accepts) -> bool:
        """Whether a reply that weights of these versions sampled may be kept. The engine serves the
        last of them.
        """
        if self.told and versions:
            self._version = versions[-1]
        return self._note([version for version in versions if not accepts(version)])

    def forget(self) -> None:
        """The engine may be another one now."""
        self._version, self._ask_at = None, 0.0

    def _note(self, refused: Sequence[str]) -> bool:
        """Returns whether none of its weights were refused."""
        self._refused_at = time.monotonic() if refused else float("-inf")
        if refused and self._said != refused[0]:
            self._said = refused[0]
            log.warning(
                "the engine at %s serves weights %r, which a run does not take: older "
                "than what it has published,"
                " not published, or not those that its jobs are pinned to. Nothing of "
                "that run is sampled there until"
                " it serves others (rollq engines sync)",
                self._name,
                refused[0],
            )
        return not refused

    def _ask(self) -> None:
        if not self._lock.acquire(
            blocking=False
        ):  # another thread asks, and the engine may take its time
            return
        try:
            if time.monotonic() < self._ask_at:
                return
            self._ask_at = time.monotonic() + ASK_S
            info = self._get("/model_info")
            version = info.get("weight_version") if isinstance(info, dict) else None
            self.told = isinstance(version, str)
            self._version = version if isinstance(version, str) else None
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
        """Of the runs that ever waited."""

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
        """Whether any call of that run waits."""
        return run in self._clocks and self._clocks[run].running

    def seconds(self, run: str) -> float:
        """Seconds so far in which any call of that run waited."""
        return self._clocks[run].seconds if run in self._clocks else 0.0

"""The policies that an engine serves: its weights, and the adapters that it lacks.

An engine that was restarted, has missed a sync or came late serves older weights than the run has
published, or lacks the version of an adapter. The invariant: a reply whose weights the call does
not accept is not kept (`EngineClient.sample`). To ask the engine first is cheaper. Missing adapters
are learnt from its refusals: a router has no list of them, and an engine loads an adapter again by
itself that it has dropped for lack of room. It knows nothing of steps or of published versions.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rollq_worker.engine.availability import OutageClock
from rollq_worker.engine.call import Call
from rollq_worker.protocols import Adapter, Generated
from rollq_worker.remote.http_client import NoResponse
from rollq_worker.remote.waiting import wait

log = logging.getLogger(__name__)

Accepts = Callable[[str], bool]
"""Decides if weights of that version may sample. It may raise an error that stops the attempt."""
ASK_S = 1.0
"""Seconds between two questions to an engine whose weights are not accepted, and between two
requests for an adapter that it refuses.
"""


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


class MissingAdapters:
    """The missing adapters of one engine, for all threads."""

    def __init__(self, name: str) -> None:
        """`name` is the engine's, for people."""
        self._name = name
        self._ask_at: dict[Adapter, float] = {}
        """Monotonic time from which each may be asked for again."""

    @property
    def any(self) -> bool:
        """True if one was refused lately, and not served since."""
        recent = time.monotonic() - 30.0
        return any(at > recent for at in list(self._ask_at.values()))

    def suit(self, adapter: Adapter) -> bool:
        """True if a request with it may be sent."""
        return time.monotonic() >= self._ask_at.get(adapter, 0.0)

    def sent(self, adapter: Adapter) -> None:
        """Records that a request with it is sent. If it was refused before, others wait for the
        result.
        """
        if adapter in self._ask_at:
            self._ask_at[adapter] = time.monotonic() + ASK_S

    def refused(self, adapter: Adapter, why: str) -> None:
        if adapter not in self._ask_at:
            log.warning(
                "the engine at %s lacks version %r of the adapter %r: nothing is sampled with it "
                "there until `rollq engines sync --adapter` has loaded it (%s)",
                self._name,
                adapter.version,
                adapter.name,
                why,
            )
        self._ask_at[adapter] = time.monotonic() + ASK_S

    def served(self, adapter: Adapter) -> None:
        self._ask_at.pop(adapter, None)


class ServedPolicies:
    """The policies of one engine, for all threads."""

    def __init__(self, ask: Callable[[], str | None], name: str, waits: WeightWaits) -> None:
        """`ask` and `name`: see `ServedWeights`."""
        self.adapters = MissingAdapters(name)
        self._weights = ServedWeights(ask, name)
        self._waits = waits

    @property
    def outdated(self) -> bool:
        """True if it lately served weights that a run does not take, or lacked a run's adapter."""
        return self._weights.outdated or self.adapters.any

    def suit(self, call: Call) -> bool:
        """True if the call accepts the weights that the engine serves. One that does not report
        them is tried.
        """
        if call.request.adapter is not None:
            return self.adapters.suit(call.request.adapter())
        return call.request.accepts is None or self._weights.suit(call.request.accepts)

    def serve(self, version: str) -> bool:
        """True if it serves weights of that version, as far as it reports them."""
        return self._weights.suit(version.__eq__)

    def may_keep(self, generated: Generated, call: Call) -> bool:
        """True if the call accepts all weights that sampled the reply. If not, wait for a moment.

        A router does not report the weights of its engines, so it is then asked for single tokens.
        """
        accepts = call.request.accepts
        if accepts is None:
            return True
        versions = [span.version for span in generated.versions]
        accepted = self._weights.sampled(versions, accepts)
        was_probe = call.probes
        call.probes = not accepted and not self._weights.is_reported
        if not accepted:
            with nullcontext() if call.request.pinned else self._waits.of(call.run):
                wait(ASK_S, call.check)
        return accepted and not was_probe

    def forget(self) -> None:
        """The engine may be another one now."""
        self._weights.forget()

"""The LoRA adapters that an engine has not loaded, learnt from its refusals.

An engine that was restarted, has missed a sync or came late lacks the version of an adapter that a
run has published. Lists of adapters are not asked: a router has none, and an engine loads an
adapter again by itself that it has dropped for lack of room.
"""

import logging
import time

from rollq_worker.protocols import Adapter

log = logging.getLogger(__name__)

ASK_S = 1.0
"""Seconds between two requests for an adapter that the engine refuses."""


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

"""Whether an engine's tokenizer is ours: it is asked for the ids of a text, and they are compared.

Token ids of another vocabulary are sampled from, and look like nonsense that the policy wrote. An engine that does not
show its ids (behind a router, or without a tokenizer) is believed. It knows nothing of jobs.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from rollq_worker.engine.http import NoAnswer

log = logging.getLogger(__name__)

PROBE = "Order #W123: 你好, naïve café — 1034.99\n\n\tdone 🙂"
"""Text whose ids differ between most vocabularies."""
RETRY_S = 5.0
"""How long it stands that they differ, or that the engine was not to be asked."""


def agrees(answer: object, ours: Sequence[int]) -> bool | None:
    """Whether what /tokenize answers for PROBE is `ours`; None when it does not say."""
    theirs = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(theirs, list) or not theirs or not all(type(id) is int for id in theirs):
        return None
    ends = len(theirs) - len(ours)  # it may put a token in front that begins a text, or one behind that ends it
    return any(theirs[at : at + len(ours)] == list(ours) for at in range(ends + 1))


class KnownTokenizer:
    """What one process knows of its engine's tokenizer, for all threads. Asked when first needed."""

    def __init__(self, ask: Callable[[str], object], ours: Sequence[int]) -> None:
        """`ask` posts a text to /tokenize and may raise NoAnswer; `ours` are our ids of PROBE, none to ask nothing."""
        self._ask = ask
        self._ours = ours
        self._lock = threading.Lock()
        self._differs = False
        self._ask_at = 0.0 if ours else float("inf")  # monotonic time from which asking is worth while

    def differs(self) -> bool:
        """True: every id that is sent there means something else."""
        if time.monotonic() >= self._ask_at:
            with self._lock:
                if time.monotonic() >= self._ask_at:
                    self._look()
        return self._differs

    def _look(self) -> None:
        try:
            self._differs = agrees(self._ask(PROBE), self._ours) is False
        except NoAnswer as e:
            log.debug("the engine's tokenizer is unknown: %s", e)
            self._ask_at = time.monotonic() + RETRY_S
        else:
            self._ask_at = time.monotonic() + RETRY_S if self._differs else float("inf")

    def forget(self) -> None:
        """It may be another engine now."""
        with self._lock:
            self._ask_at = 0.0 if self._ours else float("inf")

"""Generations in flight: tokens released over time, with the queue, aborts, pauses and weight
versions of a server.

The invariant: each token belongs to the version in force when it was released, and an abort returns
the tokens released by then. It knows nothing of HTTP or of the meaning of tokens.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from rollq_worker.replay_engine.http_bodies import bad_value, queue_full


@dataclass(slots=True, kw_only=True)
class Generation:
    """One request: `total` tokens, released evenly over `seconds`."""

    rid: str
    total: int
    seconds: float
    cached: int = 0
    """Tokens of its prompt that were cached."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False
    aborted: bool = False
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    """Weight version, first token and end of each stretch of the released tokens."""
    ran: float = 0.0
    """Seconds that it has run, up to `since`."""
    since: float | None = None
    """Monotonic time since which it runs; None while its clock is stopped."""

    def released(self) -> int:
        if not self.started:
            return 0
        left = self.seconds_left()
        if left <= 0:
            return self.total
        return min(self.total, int(self.total * (1 - left / self.seconds)))

    def seconds_left(self) -> float:
        left = self.seconds - self.ran
        if self.since is not None:
            left -= time.monotonic() - self.since
        return left

    def stop_clock(self) -> None:
        if self.since is not None:
            self.ran += time.monotonic() - self.since
            self.since = None

    async def wait(self, seconds: float | None) -> None:
        """Waits until the scheduler wakes it, at most that long."""
        self.wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()

    def close_span(self, version: str) -> None:
        """Records that the tokens released since the last span belong to `version`."""
        reached = self.spans[-1][2] if self.spans else 0
        count = self.released()
        if count > reached:
            self.spans.append((version, reached, count))

    def abort_after(self, count: int) -> None:
        """Turns a whole generation into one that was aborted after `count` tokens."""
        self.aborted = True
        self.total = count
        spans = [span for span in self.spans if span[1] < count]
        self.spans = [(name, start, min(end, count)) for name, start, end in spans]


class Scheduler:
    """All generations of a server. `max_running` and `max_queued` of 0 mean no limit."""

    def __init__(self, *, version: str, max_running: int = 0, max_queued: int = 0) -> None:
        self.version = version
        self.paused = False
        self.pausing = False
        """True if it is paused, or will be once the requests that the pause aborts have ended."""
        self.running = 0
        self._max_running = max_running
        self._max_queued = max_queued
        self._rids: set[str] = set()  # those that wait for the end of a pause included
        self._accepted: dict[str, Generation] = {}
        self._queue: deque[Generation] = deque()
        self._accepting = asyncio.Event()
        self._accepting.set()
        self._empty = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """True if the cache can be flushed. In a pause it can, as after SGLang's `retract`."""
        return self.paused or not self._accepted

    async def run(self, generation: Generation) -> None:
        """Runs the generation to its end or its abort. Raises HttpError for a duplicate request id
        and a full queue.
        """
        if generation.rid in self._rids:
            raise bad_value(f"Duplicate request ID detected: {generation.rid}")
        self._rids.add(generation.rid)
        try:
            await self.wait_while_paused()
            self._accepted[generation.rid] = generation
            await self._queue_and_run(generation)
        finally:
            self._rids.discard(generation.rid)
            if self._accepted.pop(generation.rid, None) and not self._accepted:
                self._empty.set()

    async def wait_while_paused(self) -> None:
        await self._accepting.wait()

    async def _queue_and_run(self, generation: Generation) -> None:
        self._start_or_queue(generation)
        try:
            while not (generation.started or generation.aborted):
                await generation.wait(None)
            if generation.started:
                await self._release_all(generation)
        finally:
            if generation.started:
                self.running -= 1
            else:
                self._queue.remove(generation)
            while self._queue and self.running < self._max_running:
                self._start(self._queue.popleft())

    def _start_or_queue(self, generation: Generation) -> None:
        if not self._max_running or self.running < self._max_running:
            self._start(generation)
        elif self._max_queued and len(self._queue) >= self._max_queued:
            raise queue_full()
        else:
            self._queue.append(generation)

    def _start(self, generation: Generation) -> None:
        generation.started = True
        self.running += 1
        if not self.paused:
            generation.since = time.monotonic()
        generation.wake.set()

    async def _release_all(self, generation: Generation) -> None:
        while not generation.aborted and (self.paused or generation.seconds_left() > 0):
            await generation.wait(None if self.paused else generation.seconds_left())
        if not generation.aborted:
            generation.ran = generation.seconds
            generation.since = None
        generation.close_span(self.version)

    def abort(self, rid: str | None) -> None:
        """Abort that request, or with None all requests. Those that wait for the end of a pause
        cannot be aborted.
        """
        for generation in list(self._accepted.values()):
            if rid in (None, generation.rid):
                generation.aborted = True
                generation.stop_clock()
                generation.wake.set()

    async def pause(self, mode: str) -> None:
        """Pause: accept nothing, and stop all clocks. With mode `abort` first abort all requests.
        May be repeated in another mode.
        """
        self.pausing = True
        self._accepting.clear()
        if mode == "abort":
            self.abort(None)
            await self._wait_until_empty()
        if self.pausing:  # else it was resumed meanwhile
            self.paused = True
            for generation in self._accepted.values():
                generation.stop_clock()
                generation.wake.set()

    def resume(self) -> None:
        self.pausing = self.paused = False
        for generation in self._accepted.values():
            if generation.started and not generation.aborted:
                generation.stop_clock()  # it runs where nothing was paused
                generation.since = time.monotonic()
            generation.wake.set()
        self._accepting.set()

    def set_version(self, version: str) -> None:
        """Tokens that are released from now on come from other weights."""
        for generation in self._accepted.values():
            generation.close_span(self.version)
        self.version = version

    async def load_weights(self, version: str | None) -> None:
        """Loads new weights: at once during a pause, else when all accepted requests have finished.
        None keeps the version's name.
        """
        if not self.paused:
            self._accepting.clear()
            try:
                await self._wait_until_empty()
            finally:  # also of a client that hangs up
                if not self.pausing:
                    self._accepting.set()
        if version is not None:
            self.set_version(version)

    async def _wait_until_empty(self) -> None:
        while self._accepted:
            self._empty.clear()
            await self._empty.wait()

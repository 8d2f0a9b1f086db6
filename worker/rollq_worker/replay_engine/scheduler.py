"""Generations in flight: tokens released over time, with the queue, aborts, pauses and weight versions of a server.

The invariant: each token belongs to the version in force when it was released, and what an abort returns is what had
been released by then. It knows nothing of HTTP or of what the tokens say.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from rollq_worker.replay_engine.errors import bad_value, overloaded

Span = tuple[str, int, int]


@dataclass(slots=True, kw_only=True)
class Generation:
    """One request: `total` tokens, released evenly over `seconds`."""

    rid: str
    total: int
    seconds: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False
    aborted: bool = False
    retractions: int = 0
    spans: list[Span] = field(default_factory=list)
    ran: float = 0.0
    """Seconds that it has run, up to `since`."""
    since: float | None = None
    """Monotonic time since which it runs; None while it stands still."""

    def released(self) -> int:
        """Tokens so far."""
        if not self.started:
            return 0
        left = self.left()
        return self.total if left <= 0 else min(self.total, int(self.total * (1 - left / self.seconds)))

    def left(self) -> float:
        """Seconds to go if nothing stops it."""
        return self.seconds - self.ran - (time.monotonic() - self.since if self.since is not None else 0.0)

    def stand(self) -> None:
        """Stop the clock."""
        if self.since is not None:
            self.ran += time.monotonic() - self.since
            self.since = None

    async def woken(self, seconds: float | None) -> None:
        """Wait for that long or until something happens to it."""
        self.wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()

    def close_span(self, version: str) -> None:
        """Tokens released since the last span belong to `version`."""
        reached, count = self.spans[-1][2] if self.spans else 0, self.released()
        if count > reached:
            self.spans.append((version, reached, count))

    def cut(self, count: int) -> None:
        """Make it one that was aborted after `count` tokens."""
        self.aborted, self.total = True, count
        self.spans = [(name, start, min(end, count)) for name, start, end in self.spans if start < count]


class Scheduler:
    """All generations of a server. `max_running` and `max_queued` of 0 mean no limit."""

    def __init__(self, *, version: str, max_running: int = 0, max_queued: int = 0) -> None:
        self.version = version
        self.paused = False
        self.running = 0
        self._max_running = max_running
        self._max_queued = max_queued
        self._rids: set[str] = set()  # the ones held at the door included
        self._inside: dict[str, Generation] = {}
        self._queue: deque[Generation] = deque()
        self._door = asyncio.Event()
        self._door.set()
        self._empty = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def run(self, generation: Generation) -> None:
        """Let it run to its end or its abort. Raises HttpError: a duplicate request id, a full queue."""
        if generation.rid in self._rids:
            raise bad_value(f"Duplicate request ID detected: {generation.rid}")
        self._rids.add(generation.rid)
        try:
            await self.opened()
            self._inside[generation.rid] = generation
            await self._play(generation)
        finally:
            self._rids.discard(generation.rid)
            if self._inside.pop(generation.rid, None) and not self._inside:
                self._empty.set()

    async def opened(self) -> None:
        """Wait while the server is paused."""
        await self._door.wait()

    async def _play(self, generation: Generation) -> None:
        if not self._max_running or self.running < self._max_running:
            self._start(generation)
        elif self._max_queued and len(self._queue) >= self._max_queued:
            raise overloaded()
        else:
            self._queue.append(generation)
        try:
            while not (generation.started or generation.aborted):
                await generation.woken(None)
            if generation.started:
                await self._run(generation)
        finally:
            if generation.started:
                self.running -= 1
            else:
                self._queue.remove(generation)
            while self._queue and self.running < self._max_running:
                self._start(self._queue.popleft())

    def _start(self, generation: Generation) -> None:
        generation.started = True
        self.running += 1
        if not self.paused:
            generation.since = time.monotonic()
        generation.wake.set()

    async def _run(self, generation: Generation) -> None:
        # Aborted in a pause, it leaves when the pause ends.
        while self.paused or not (generation.aborted or generation.left() <= 0):
            await generation.woken(None if self.paused else generation.left())
        if not generation.aborted:
            generation.ran, generation.since = generation.seconds, None
        generation.close_span(self.version)

    def abort(self, rid: str | None) -> None:
        """End that request, or all with None, with what has been released. Those held at the door cannot be reached."""
        for generation in list(self._inside.values()):
            if rid in (None, generation.rid):
                generation.aborted = True
                generation.stand()
                generation.wake.set()

    async def pause(self, mode: str) -> None:
        """Close the door; generations stand still (in_place, retract) or are aborted first (abort)."""
        self._door.clear()
        if mode == "abort":
            self.abort(None)
            await self._emptied()
        self.paused = True
        for generation in self._inside.values():
            generation.stand()
            generation.retractions += mode == "retract" and generation.started
            generation.wake.set()

    def resume(self) -> None:
        self.paused = False
        for generation in self._inside.values():
            if generation.started and not generation.aborted:
                generation.since = time.monotonic()
            generation.wake.set()
        self._door.set()

    def relabel(self, version: str) -> None:
        """Tokens from now on come from other weights."""
        for generation in self._inside.values():
            generation.close_span(self.version)
        self.version = version

    async def reload(self, version: str | None) -> None:
        """New weights: at once in a pause, else when all that are running have finished."""
        if not self.paused:
            self._door.clear()
            await self._emptied()
            self._door.set()
        if version is not None:
            self.relabel(version)

    async def _emptied(self) -> None:
        while self._inside:
            self._empty.clear()
            await self._empty.wait()

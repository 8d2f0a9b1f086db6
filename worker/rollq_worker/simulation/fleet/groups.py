"""Groups on their way through the ledger, by its own rules: who may enter, what is handed out, how old it is.

The rules are those of lua/submit.lua, admission.lua, claim.lua, settle.lua, take.lua and ack.lua, for groups in which
no job dies. `costs/ledger_run.py` plays the same steps on a real Redis and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush


class Group:
    """A group of rollouts. Its members end in any order."""

    __slots__ = ("bytes", "engine", "left", "seq", "size", "started")

    def __init__(self, seq: int, size: int) -> None:
        self.seq = seq
        self.size = self.left = size
        self.started: int | None = None
        """The published step at its first claim."""
        self.bytes = 0.0
        """What Redis keeps of it."""
        self.engine = -1
        """The engine that plays it."""


class Groups:
    """All groups of a run that are not acknowledged."""

    def __init__(self, size: int, ahead: int, batch: int, max_staleness: int | None) -> None:
        self.step = 0
        """The step that was published last."""
        self._size, self._ahead, self._batch, self._staleness = size, ahead, batch, max_staleness
        self.entered = self._acknowledged = 0
        self._open: set[int] = set()
        self._oldest: list[int] = []
        """A heap of the sequence numbers of open groups, and of some that are not open any more."""
        self._ready: list[tuple[int, Group]] = []

    @property
    def room(self) -> bool:
        """Whether a new group may enter."""
        if self._staleness is None:
            return self.entered - self._acknowledged < self._ahead
        # Every group that was entered is open, ready, held or trained.
        return self.entered < (self._staleness + self.step + 1) * self._batch

    def enter(self) -> Group:
        self.entered += 1
        group = Group(self.entered, self._size)
        self._open.add(group.seq)
        heappush(self._oldest, group.seq)
        return group

    def begin(self, group: Group) -> None:
        """A member is claimed."""
        if group.started is None:
            group.started = self.step

    def end(self, group: Group) -> bool:
        """A member is done. Returns whether it was the group's last."""
        group.left -= 1
        if group.left:
            return False
        self._open.discard(group.seq)
        heappush(self._ready, (group.seq, group))
        return True

    def take(self, count: int) -> list[Group]:
        """So many groups of the lowest sequence, or none. They are held then."""
        if len(self._ready) < count:
            return []
        taken = [heappop(self._ready) for _ in range(count)]
        if self._staleness is not None and taken[-1][0] > self._oldest_open():
            for one in taken:
                heappush(self._ready, one)
            return []
        return [group for _, group in taken]

    def _oldest_open(self) -> float:
        while self._oldest and self._oldest[0] not in self._open:
            heappop(self._oldest)
        return self._oldest[0] if self._oldest else float("inf")

    def acknowledge(self, groups: Sequence[Group]) -> None:
        self._acknowledged += len(groups)

    def publish(self) -> None:
        """The next step's policy is served."""
        self.step += 1

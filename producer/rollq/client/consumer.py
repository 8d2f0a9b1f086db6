"""One consumer of a run: takes finished groups of one purpose and holds them until it acknowledges or rejects them.

It holds nothing that a restart would miss: what is not acknowledged goes to whoever asks next.
"""

import itertools
import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType

from rollq.batch import Batch
from rollq.client.hold_renewal import Holds
from rollq.errors import ContractError, NotHeld, PullTimeout, Unwritable
from rollq.group import Group
from rollq.job import Purpose
from rollq.ledger.ledger import HOLD_S, Ledger
from rollq.ledger.replies import TakenGroup
from rollq.ledger.retry import RetryLoop

log = logging.getLogger("rollq")


class Consumer:
    """What it took is kept for it until it is closed, by `close` or as a context manager, or its process ends."""

    def __init__(self, ledger: Ledger, purpose: Purpose, hold_s: float = HOLD_S) -> None:
        self._ledger = ledger
        self._purpose = purpose
        self._hold_s = hold_s
        self._holds = Holds(ledger, hold_s)
        self._retry = RetryLoop()
        self._steps = itertools.count()

    @property
    def held(self) -> int:
        """Groups that it has taken and neither acknowledged nor rejected."""
        return self._holds.groups

    def next(self, groups: int, timeout: float | None = None) -> Batch | None:
        """A batch of that many groups, or fewer at the end of a sealed run; None when no more can come.

        Raises PullTimeout when it is not there within `timeout` seconds (None: waits); then one may ask again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.01
        while True:
            token = uuid.uuid4().hex
            if taken := self._take(groups, token, deadline):
                self._holds.add(token, len(taken))
                try:
                    members = self._read(token, taken)
                except BaseException:
                    self._holds.drop(token)  # nobody will ever see this batch: it comes again
                    raise
                if members:
                    return self._batch(token, members)
                continue
            standing = self._retry(partial(self._ledger.standing, self._purpose))
            if standing.sealed and not standing.open and not standing.ready and standing.held <= self.held:
                return None
            if deadline is not None and time.monotonic() >= deadline:
                idle = standing.ready and not standing.open
                raise PullTimeout(
                    f"run {self._ledger.run}: no {groups} groups were ready within {timeout:g} s:"
                    f" {standing.ready} ready, {standing.open} open, {standing.held} held"
                    + ("; all that was submitted is played: submit further ahead, or ask for fewer" if idle else "")
                )
            time.sleep(pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(0.5, pause * 1.5)

    def _batch(self, token: str, groups: list[Group]) -> Batch:
        ids = [trajectory.job.id for group in groups for trajectory in group.trajectories]
        return Batch(
            step=next(self._steps),
            groups=groups,
            acknowledge=partial(self._ack, token, ids),
            condemn=partial(self._reject, token),
        )

    def _ack(self, token: str, job_ids: Sequence[str]) -> None:
        try:
            self._retry(lambda: self._ledger.ack(token, job_ids))
        except NotHeld:
            self._holds.drop(token)  # the rest of the batch too, or nobody would ever get it
            raise
        self._holds.drop(token)

    def _reject(self, token: str, job_id: str, reason: str) -> None:
        log.error("a finished job cannot be used and is dead-lettered: %s", reason)
        self._holds.drop(token)
        self._retry(lambda: self._ledger.condemn(token, job_id, reason))

    def close(self) -> None:
        """What it holds goes to others once the hold has run out."""
        self._holds.close()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, groups: int, token: str, deadline: float | None) -> Sequence[TakenGroup]:
        left = float("inf") if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self._retry(partial(self._ledger.take, groups, token, self._hold_s, self._purpose), left)
        except Unwritable as e:
            raise PullTimeout(str(e)) from e

    def _read(self, token: str, taken: Sequence[TakenGroup]) -> list[Group] | None:
        """The groups with their trajectories; None when one cannot be read, which is dead then and nothing is held."""
        groups = []
        for group in taken:
            trajectories = []
            read = self._retry(partial(self._ledger.read, group.members))
            for job_id, found in zip(group.members, read, strict=True):
                if isinstance(found, ContractError):
                    with suppress(NotHeld):  # then it is another consumer's by now
                        self._reject(token, job_id, str(found))
                    return None
                trajectories.append(replace(found, job=replace(found.job, seq=group.seq)))
            groups.append(
                Group(id=group.id, seq=group.seq, size=group.size, trajectories=trajectories, dead=group.dead)
            )
        return groups

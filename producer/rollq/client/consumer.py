"""One consumer of a run: takes finished groups of one purpose and holds them until it acknowledges or rejects them.

A background thread renews its holds in Redis. When the consumer or its process ends, the holds run out, and the groups
go to another consumer.
"""

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from rollq.batch import Batch, Group
from rollq.errors import ContractError, LedgerError, NotHeld, PullTimeout, Unwritable
from rollq.job import Purpose
from rollq.ledger.connection import RetryLoop
from rollq.ledger.constants import HOLD_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Standing, TakenGroup

log = logging.getLogger("rollq")

RENEW_RETRY_S = 1.0
"""Seconds between two tries to renew while Redis is away. After an outage, Redis keeps holds for a few seconds only
(rollq.ledger.constants.GRACE_S)."""


class Consumer:
    """One consumer. It holds what it took until `close`, the end of its `with` block or the end of its process."""

    def __init__(self, ledger: Ledger, purpose: Purpose, hold_s: float = HOLD_S) -> None:
        self._ledger = ledger
        self._reader = LedgerReader(ledger.redis, ledger.run)
        self._purpose = purpose
        self._hold_s = hold_s
        self._holds = HoldRenewal(ledger, hold_s)
        self._retry = RetryLoop()
        self._steps = itertools.count()

    @property
    def held(self) -> int:
        """Groups that this consumer took and has neither acknowledged nor rejected."""
        return self._holds.groups

    def next(self, groups: int, timeout: float | None = None) -> Batch | None:
        """The next batch of that many groups, or of fewer at the end of a sealed run; None when no more can come.

        Raises PullTimeout when it is not ready within `timeout` seconds (None: waits without end), and may be called
        again.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        pause = 0.01
        while True:
            token = uuid.uuid4().hex
            if taken := self._take(groups, token, deadline):
                if members := self._read(token, taken):
                    return self._batch(token, members)
                continue
            standing = self._retry(partial(self._reader.standing, self._purpose))
            if standing.sealed and not standing.open and not standing.ready and standing.held <= self.held:
                return None
            if time.monotonic() >= deadline:
                raise PullTimeout(self._missing(standing, groups, timeout or 0.0))
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(0.5, pause * 1.5)

    def _missing(self, standing: Standing, groups: int, timeout: float) -> str:
        all_played = standing.ready and not standing.open
        return (
            f"run {self._ledger.run}: no {groups} groups were ready within {timeout:g} s:"
            f" {standing.ready} ready, {standing.open} open, {standing.held} held"
            + ("; all submitted jobs are played: submit further ahead, or ask for fewer groups" if all_played else "")
        )

    def _take(self, groups: int, token: str, deadline: float) -> Sequence[TakenGroup]:
        left = max(0.0, deadline - time.monotonic())
        try:
            return self._retry(partial(self._ledger.take, groups, token, self._hold_s, self._purpose), left)
        except Unwritable as e:
            raise PullTimeout(str(e)) from e

    def _read(self, token: str, taken: Sequence[TakenGroup]) -> list[Group] | None:
        """The groups with their trajectories.

        When a trajectory cannot be read, its job is rejected, no group of the batch is held any more, and None is
        returned.
        """
        self._holds.add(token, len(taken))
        groups = []
        try:
            for group in taken:
                read = self._retry(partial(self._reader.read, group.members))
                trajectories = []
                for job_id, found in zip(group.members, read, strict=True):
                    if isinstance(found, ContractError):
                        with suppress(NotHeld):  # another consumer holds it by now
                            self._reject(token, job_id, str(found))
                        return None
                    trajectories.append(replace(found, job=replace(found.job, seq=group.seq)))
                groups.append(
                    Group(id=group.id, seq=group.seq, size=group.size, trajectories=trajectories, dead=group.dead)
                )
        except BaseException:
            self._holds.drop(token)  # no caller gets this batch, so it must be handed out again
            raise
        return groups

    def _batch(self, token: str, groups: list[Group]) -> Batch:
        ids = [trajectory.job.id for group in groups for trajectory in group.trajectories]
        return Batch(
            step=next(self._steps),
            groups=groups,
            on_ack=partial(self._ack, token, ids),
            on_reject=partial(self._reject, token),
        )

    def _ack(self, token: str, job_ids: Sequence[str]) -> None:
        try:
            self._retry(lambda: self._ledger.ack(token, job_ids))
        except LedgerError:  # a group of the batch is lost or damaged
            self._holds.drop(token)  # else its other groups would be held for ever
            raise
        self._holds.drop(token)

    def _reject(self, token: str, job_id: str, reason: str) -> None:
        log.error("a finished job cannot be used and is dead-lettered: %s", reason)
        self._holds.drop(token)
        self._retry(lambda: self._ledger.reject(token, job_id, reason))

    def close(self) -> None:
        """Stop renewing. Groups that are still held go to other consumers once the hold has run out."""
        self._holds.close()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class HoldRenewal:
    """Renews the holds of one consumer in a daemon thread, three times in each hold."""

    def __init__(self, ledger: Ledger, hold_s: float = HOLD_S) -> None:
        self._ledger = ledger
        self._hold_s = hold_s
        self._groups: dict[str, int] = {}
        """Groups in each batch, by its token."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def groups(self) -> int:
        """Groups whose holds are renewed."""
        with self._lock:
            return sum(self._groups.values())

    def add(self, token: str, groups: int) -> None:
        with self._lock:
            self._groups[token] = groups
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name="rollq-holds", daemon=True)
                self._thread.start()

    def drop(self, token: str) -> None:
        """Stop renewing the hold of this batch: it was acknowledged, rejected or lost."""
        with self._lock:
            self._groups.pop(token, None)

    def close(self) -> None:
        self._stop.set()

    def _renew(self) -> None:
        pause, reachable = self._hold_s / 3, True
        while not self._stop.wait(pause):
            was_reachable, reachable = reachable, True
            with self._lock:
                tokens = list(self._groups)
            for token in tokens:
                try:
                    self._ledger.extend_hold(token, self._hold_s)
                except NotHeld as e:
                    log.warning("a consumer was out of touch for too long: %s", e)
                    self.drop(token)
                except Exception as e:  # whatever Redis raises, the next try may be in time
                    if was_reachable and reachable:
                        log.warning("cannot renew a hold, trying again: %s: %s", type(e).__name__, e)
                    reachable = False
            pause = self._hold_s / 3 if reachable else min(self._hold_s / 3, RENEW_RETRY_S)

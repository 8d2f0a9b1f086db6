"""A run in Redis as a place with rollouts: an index in memory that reads only what changed since it
was read last.

It only reads, and what it knows may be a second old. Where more than PAGE jobs are queued, it may
see later that one of them failed meanwhile. When Redis does not answer, it is what was known
before. A job whose group is acknowledged is no longer in Redis: its row stays as long as the page
is served, its conversation does not.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from rollq.errors import ContractError, LedgerError, Unwritable
from rollq.job import job_id
from rollq.snapshot.rollouts import (
    GroupRecord,
    Indexes,
    RedisAway,
    Rollout,
    RolloutReader,
    reachable,
)
from rollq.snapshot.run import group_of
from rollq_view.place import Listing
from rollq_view.rows import Row, last_line, short, why
from rollq_view.run_facts import run_facts

READ_EVERY_S = 1.0
"""Seconds for which what was read last is still good."""
PAGE = 500
"""Jobs that are read in one round trip."""
ACKED, DROPPED, UNREADABLE = "acked", "dropped", "unreadable"
QUEUED, LEASED, DONE, DEAD = "queued", "leased", "done", "dead"
UNFINISHED = (QUEUED, LEASED)


class LiveRun:
    """The rows and the counts of one run. `listing` reads what changed, at most every READ_EVERY_S
    seconds.
    """

    def __init__(self, reader: RolloutReader, where: str) -> None:
        """`where`: Redis's address, without a password."""
        self.reader = reader
        self._where = where
        self._lock = Lock()
        self._forget()
        self._version = 0
        self._began: float | None = None
        self._next_resting = 0
        self._facts: dict[str, Any] | None = None
        """The counts. None before the first read."""
        self._trouble = ""
        """Why the last look found nothing new."""
        self._looked_at = self._read_at = float("-inf")
        """Times of the last look, and of the last one without trouble."""

    def _forget(self) -> None:
        self._rows: dict[str, Row] = {}
        self._ids: dict[str, dict[str, None]] = {}
        """The jobs of each group."""
        self._groups: dict[str, GroupRecord] = {}
        self._states: dict[str, str] = {}

    def listing(self) -> Listing:
        """The run as of the last look, with the trouble if that failed. Raises LedgerError if all
        looks did.
        """
        with self._lock:
            if time.monotonic() - self._looked_at > READ_EVERY_S:
                self._trouble = self._look()
                self._looked_at = time.monotonic()
                if not self._trouble:
                    self._read_at = self._looked_at
            if self._trouble and self._facts is None and not self._rows:
                raise LedgerError(self._trouble)
            facts = dict(self._facts or {})
            facts["trouble"] = self._trouble
            facts["age_s"] = self._looked_at - self._read_at
            return Listing(
                rows=dict(self._rows), version=self._version, groups=dict(self._states), facts=facts
            )

    def _look(self) -> str:
        """Reads what changed. Returns the trouble; earlier rows stay."""
        troubles = []
        for read in (self._read_facts, self._read_rows):
            try:
                with reachable(self._where):
                    read()
            except (RedisAway, Unwritable) as e:  # it is away, or busy
                return str(e)
            except LedgerError as e:
                troubles.append(str(e))
        return "; ".join(troubles)

    def _read_facts(self) -> None:
        self._facts = run_facts(self.reader.fleet())

    def _read_rows(self) -> None:
        indexes = self.reader.indexes()
        if indexes.began != self._began and self._ids:  # it was deleted
            self._forget()
            self._version += 1
        self._began = indexes.began
        dead_groups = dict.fromkeys(map(group_of, indexes.dead))
        names = {**indexes.groups, **dead_groups}
        self._find_groups([name for name in names if not self._is_read(name)])
        for id in indexes.dead:  # the only members left of a group that was acknowledged before
            self._ids[group_of(id)][id] = None
        gone = {**self._states, **dead_groups}.keys() - indexes.groups.keys()
        dropped = self._leave([name for name in gone if self._states.get(name) != ACKED])
        self._read_changed(indexes, {*names, *dropped})
        if any(self._states.get(name) != state for name, state in indexes.groups.items()):
            self._states |= indexes.groups
            self._version += 1

    def _read_changed(self, indexes: Indexes, groups: set[str]) -> None:
        """Reads the jobs of these groups that may have changed."""
        dead = frozenset(indexes.dead)
        ids = [id for name, members in self._ids.items() if name in groups for id in members]
        changed = [id for id in ids if self._may_have_changed(id, indexes, dead)]
        changed += self._next_page([id for id in ids if id in indexes.queued or id in dead])
        for start in range(0, len(changed), PAGE):
            self._read_jobs(changed[start : start + PAGE])

    def _is_read(self, name: str) -> bool:
        return name in self._groups and isinstance(self._groups[name].body, bytes)

    def _find_groups(self, names: Sequence[str]) -> None:
        """Notes new groups, in the order of submission."""
        groups = self.reader.groups(names)
        for name, group in sorted(groups.items(), key=lambda each: each[1].seq):
            self._ids[name] = dict.fromkeys(
                job_id(self.reader.run, name, sample) for sample in range(group.members)
            )
            self._groups[name] = group

    def _leave(self, names: Sequence[str]) -> list[str]:
        """Groups that are in no index any more: acknowledged, dropped, or deleted with their run.
        Returns the ones that are dropped.
        """
        states = dict(zip(names, self.reader.group_states(names), strict=True))
        for name, state in states.items():
            if self._states.get(name) == state:
                continue
            self._version += 1
            self._states[name] = state
            for id in self._ids[name]:
                if not state:
                    self._rows.pop(id, None)
                elif state == ACKED and id in self._rows:
                    self._rows[id] = _acknowledged_row(self._rows[id])
            if not state:
                del self._states[name], self._ids[name], self._groups[name]
        return [name for name, state in states.items() if state == DROPPED]

    def _may_have_changed(self, id: str, indexes: Indexes, dead: frozenset[str]) -> bool:
        row = self._rows.get(id)
        if row is None or id in indexes.leased:  # a job that is played has new turns
            return True
        if id in indexes.queued:
            return row.state != QUEUED
        if id in dead:
            return row.state != DEAD
        return row.state in (QUEUED, LEASED, DEAD, UNREADABLE)

    def _next_page(self, resting: list[str]) -> list[str]:
        """Reads some of them each time: one that was played since, and was queued again or has died
        again, is in the same index as before.
        """
        start = self._next_resting
        if start >= len(resting):
            start = 0
        self._next_resting = start + PAGE
        return resting[start : start + PAGE]

    def _read_jobs(self, ids: Sequence[str]) -> None:
        for id, rollout in self.reader.rollouts(ids, self._groups).items():
            row = self._row_without_record(id) if rollout is None else _row(id, rollout)
            if row is not None and row != self._rows.get(id):
                self._rows[id] = row
                self._version += 1

    def _row_without_record(self, id: str) -> Row | None:
        """The row of a job whose record is gone: its group may have been skipped as stale between
        two looks.
        """
        row = self._rows.get(id)
        if row is None or row.state not in UNFINISHED or self._states.get(group_of(id)) != DROPPED:
            return None
        return replace(
            row,
            state=DONE,
            turns=None,
            attempt=0,
            why="it ended, and its group was too old to train on",
        )


def _acknowledged_row(row: Row) -> Row:
    """The row of a member once its group is acknowledged. If its end was not seen, Redis no longer
    tells it.
    """
    if row.state == DONE:
        return replace(row, state=ACKED)
    if row.state in UNFINISHED:
        return replace(
            row,
            state=ACKED,
            turns=None,
            attempt=0,
            why="acknowledged before its end was seen",
        )
    return row


def _row(id: str, rollout: Rollout | ContractError | LedgerError) -> Row:
    if not isinstance(rollout, Rollout):
        run, group, sample = id.split("/")
        why_not = short(str(rollout))
        return Row(
            key=id, job=id, run=run, group=group, sample=int(sample), state=UNREADABLE, why=why_not
        )
    job = rollout.job
    row = Row(
        key=job.id,
        job=job.id,
        run=job.run,
        group=job.group,
        sample=job.sample,
        env=job.env,
        split=job.split,
        task=job.task,
        state=rollout.state,
        attempt=rollout.attempt,
        turns=rollout.turns,
        began=rollout.began,
    )
    if row.state != DONE:
        return replace(row, failure=rollout.failure, why=short(last_line(rollout.reason)))
    end = rollout.end
    if end is None and rollout.journaled:
        return replace(row, why="its journal has no graded end")
    if end is None:
        return replace(row, why="its journal is gone, with its dropped group")
    return replace(
        row, stop=end.stop.value, reward=end.reward, why=why(end.info), sampled=rollout.sampled
    )

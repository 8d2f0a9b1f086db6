"""A run in Redis as a place with rollouts: an index in memory that reads only what changed since it was read last.

It only reads, and what it knows may be a second old. Where more than PAGE jobs are queued, it may see later that one of
them failed meanwhile. When Redis does not answer, it is what was known before. A job whose group is acknowledged is no
longer in Redis: its row stays as long as the page is served, its conversation does not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

from rollq.errors import ContractError, LedgerError, Unwritable
from rollq.events import Closed
from rollq.job import Job, Purpose, parse_id
from rollq.ledger.reader import LedgerReader
from rollq.ledger.records import sample_of
from rollq.ledger.replies import State
from rollq.ledger.stored import group_size, number, text
from rollq.servers.connection import CONNECTION_ERRORS
from rollq.viewer.place import Listing
from rollq.viewer.rows import Row, last_line, short, why
from rollq.viewer.run_facts import run_facts
from rollq.wire.events import decode_event

READ_EVERY_S = 1.0
"""Seconds for which what was read last is still good."""
PAGE = 500
"""Jobs that are read in one round trip."""
ACKED, DROPPED, UNREADABLE = "acked", "dropped", "unreadable"
OF_GROUP = ("seq", "size", "spare", "body")
OF_JOB = ("state", "attempt", "class", "reason", "turned", "claimed", "body")


@dataclass(frozen=True, slots=True)
class Glance:
    """The indexes of the run in Redis, read in one round trip."""

    exists: bool
    groups: Mapping[str, str]
    """State by name: those that are open, ready or held."""
    queued: frozenset[str]
    leased: frozenset[str]
    dead: Sequence[str]


class LiveRun:
    """The rows and the counts of one run. `listing` reads what changed, at most every READ_EVERY_S seconds."""

    def __init__(self, reader: LedgerReader) -> None:
        self.reader = reader
        self._lock = Lock()
        self._forget()
        self._version = 0
        self._next_queued = 0
        self._facts: dict[str, Any] | None = None
        """The counts; None: never read."""
        self._trouble = ""
        """Why the last look found nothing new."""
        self._looked_at = self._read_at = float("-inf")
        """When it was looked last, and when last without trouble."""

    def _forget(self) -> None:
        self._rows: dict[str, Row] = {}
        self._ids: dict[str, dict[str, None]] = {}
        """The jobs of each group."""
        self._bodies: dict[str, bytes | LedgerError] = {}
        """The first job of each group, or why the group's record cannot be read."""
        self._states: dict[str, str] = {}

    def listing(self) -> Listing:
        """What is known of the run, with the trouble if the last look failed. Raises LedgerError if all did."""
        with self._lock:
            if time.monotonic() - self._looked_at > READ_EVERY_S:
                self._trouble = self._look()
                self._looked_at = time.monotonic()
                self._read_at = self._read_at if self._trouble else self._looked_at
            if self._trouble and self._facts is None and not self._rows:
                raise LedgerError(self._trouble)
            facts = {**(self._facts or {}), "trouble": self._trouble, "age_s": self._looked_at - self._read_at}
            return Listing(rows=dict(self._rows), version=self._version, groups=dict(self._states), facts=facts)

    def _look(self) -> str:
        """Reads what changed. Returns what went wrong; what was known before stays."""
        wrong = []
        for read in (self._read_facts, self._read_rows):
            try:
                read()
            except CONNECTION_ERRORS as e:
                return f"Redis does not answer: {e}"
            except Unwritable as e:  # it is busy
                return str(e)
            except LedgerError as e:
                wrong.append(str(e))
        return "; ".join(wrong)

    def _read_facts(self) -> None:
        self._facts = run_facts(self.reader)

    def _read_rows(self) -> None:
        seen = self._glance()
        if not seen.exists and self._ids:
            self._forget()
            self._version += 1
        of_dead = dict.fromkeys(_group(id) for id in seen.dead)
        self._find_groups([name for name in {**seen.groups, **of_dead} if type(self._bodies.get(name)) is not bytes])
        for id in seen.dead:  # all that is known of a group that was acknowledged before
            self._ids[_group(id)][id] = None
        gone = {**self._states, **of_dead}.keys() - seen.groups.keys()
        dropped = self._leave([name for name in gone if self._states.get(name) != ACKED])
        dead = frozenset(seen.dead)
        present = {*seen.groups, *of_dead, *dropped}
        ids = [id for name, members in self._ids.items() if name in present for id in members]
        changed = [id for id in ids if self._may_have_changed(id, seen, dead)]
        changed += self._next_page([id for id in ids if id in seen.queued])
        for start in range(0, len(changed), PAGE):
            self._read_jobs(changed[start : start + PAGE])
        if any(self._states.get(name) != state for name, state in seen.groups.items()):
            self._states |= seen.groups
            self._version += 1

    def _glance(self) -> Glance:
        """A job that moves on while the indexes are read is in the later one, too, or looks gone and is asked for."""
        redis, keys = self.reader.redis, self.reader.keys
        pipe = redis.pipeline(transaction=False)  # a Redis that is out of memory refuses even to read in MULTI
        places = [(state, purpose) for state in ("open", "ready", "held") for purpose in Purpose]
        pipe.exists(keys.meta)
        for state, purpose in places:
            pipe.zrange(f"{keys.prefix}{state}:{purpose}", 0, -1)
        for key in (keys.queued, keys.leased, keys.dead):
            pipe.zrange(key, 0, -1)
        exists, *groups, queued, leased, dead = self.reader.scripts.guard(keys.queued, pipe.execute)
        states = {text(name): state for (state, _), names in zip(places, groups, strict=True) for name in names}
        return Glance(
            exists=bool(exists),
            groups=states,
            queued=frozenset(map(text, queued)),
            leased=frozenset(text(held).partition("#")[0] for held in leased),
            dead=[id for id in map(text, dead) if id in self._rows or self._is_job(id)],
        )

    def _is_job(self, id: str) -> bool:
        try:
            return parse_id(id)[0] == self.reader.run
        except ContractError:
            return False

    def _find_groups(self, names: Sequence[str]) -> None:
        """Notes new groups, in the order of submission."""
        keys = self.reader.keys
        records = self._replies(names, lambda pipe, name: pipe.hmget(keys.group(name), *OF_GROUP))
        found = [(*_shape(record, keys.group(name)), name) for name, record in records.items()]
        for _, members, body, name in sorted(found, key=lambda each: each[0]):
            self._ids[name] = dict.fromkeys(f"{self.reader.run}/{name}/{sample}" for sample in range(members))
            self._bodies[name] = body

    def _leave(self, names: Sequence[str]) -> list[str]:
        """Groups that are in no index any more: acknowledged, dropped, or deleted with their run. Returns the ones that
        are dropped."""
        states = dict(zip(names, self.reader.group_states(names) if names else (), strict=True))
        for name, state in states.items():
            if self._states.get(name) == state:
                continue
            self._version += 1
            self._states[name] = state
            for id in self._ids[name]:
                if not state:
                    self._rows.pop(id, None)
                elif state == ACKED and id in self._rows:
                    self._rows[id] = _acked(self._rows[id])
            if not state:
                del self._states[name], self._ids[name], self._bodies[name]
        return [name for name, state in states.items() if state == DROPPED]

    def _may_have_changed(self, id: str, seen: Glance, dead: frozenset[str]) -> bool:
        row = self._rows.get(id)
        if row is None or id in seen.leased:  # a job that is played has new turns
            return True
        indexed = State.QUEUED if id in seen.queued else State.DEAD if id in dead else None
        return row.state != indexed if indexed else row.state in (State.QUEUED, State.LEASED, State.DEAD, UNREADABLE)

    def _next_page(self, queued: list[str]) -> list[str]:
        """Some of them each time: one that was played and queued again since is in the same index as before."""
        start = self._next_queued if self._next_queued < len(queued) else 0
        self._next_queued = start + PAGE
        return queued[start : start + PAGE]

    def _read_jobs(self, ids: Sequence[str]) -> None:
        keys = self.reader.keys
        records = self._replies(ids, lambda pipe, id: pipe.hmget(keys.job(id), *OF_JOB))
        done = [id for id, record in records.items() if isinstance(record, list) and record[0] == b"done"]
        ends = self._replies(done, lambda pipe, id: pipe.lindex(keys.journal(id), -1))
        tallies = self._replies(done, lambda pipe, id: pipe.hget(keys.group(_group(id)), f"tally:{id.split('/')[2]}"))
        for id, record in records.items():
            row = self._row(id, record, ends.get(id), tallies.get(id))
            if row is not None and row != self._rows.get(id):
                self._rows[id], self._version = row, self._version + 1

    def _replies(self, ids: Sequence[str], ask: Callable[[Any, str], object]) -> dict[str, Any]:
        pipe = self.reader.redis.pipeline(transaction=False)
        for id in ids:
            ask(pipe, id)
        found = self.reader.scripts.guard("jobs", partial(pipe.execute, raise_on_error=False))
        return dict(zip(ids, found, strict=True))

    def _row(self, id: str, record: Any, end: Any, tally: Any) -> Row | None:
        group_body = self._bodies[_group(id)]
        try:
            if isinstance(group_body, LedgerError):
                raise group_body
            state, attempt, failure, reason, turned, claimed, body = record
            if state is None:
                return self._skipped(id)
            job = sample_of(body or group_body, id)
            row = _job_row(job, text(state), int(attempt or 0), int(turned or 0), float(claimed or 0.0))
            if row.state == State.DONE and end is None:
                return replace(row, why="its journal is gone, with its dropped group")
            if row.state == State.DONE:
                return _graded(row, decode_event(end, id), _numbers(tally))
            return replace(row, failure=text(failure), why=short(last_line(text(reason))))
        except (ContractError, LedgerError, TypeError, ValueError) as e:
            return _unreadable(id, self.reader.run, str(e))

    def _skipped(self, id: str) -> Row | None:
        """The row of a job whose record is gone: its group may have been skipped as stale between two looks."""
        row = self._rows.get(id)
        if row is None or row.state not in (State.QUEUED, State.LEASED) or self._states.get(_group(id)) != DROPPED:
            return None
        return replace(
            row, state=State.DONE, turns=None, attempt=0, why="it ended, and its group was too old to train on"
        )


def _group(id: str) -> str:
    return id.split("/")[1]


def _shape(record: Any, key: str) -> tuple[float, int, bytes | LedgerError]:
    """Sequence, number of members, and first job of a group. A damaged one counts as one member."""
    try:
        seq, size, spare, body = record
        members = group_size(size, spare, key)[1] if size else 0
    except TypeError:  # Redis refused to read it
        return 0, 1, LedgerError(f"{key} cannot be read: {record}")
    except LedgerError as e:
        return 0, 1, e
    return number(seq) or 0, members, body or b""


def _acked(row: Row) -> Row:
    """The row of a member once its group is acknowledged. If its end was not seen, Redis no longer tells it."""
    if row.state == State.DONE:
        return replace(row, state=ACKED)
    if row.state in (State.QUEUED, State.LEASED):
        return replace(row, state=ACKED, turns=None, attempt=0, why="it ended and was acknowledged between two looks")
    return row


def _job_row(job: Job, state: str, attempt: int, turns: int, began: float) -> Row:
    return Row(
        key=job.id,
        job=job.id,
        run=job.run,
        group=job.group,
        sample=job.sample,
        env=job.env,
        split=job.split,
        task=job.task,
        state=state,
        attempt=attempt,
        turns=turns,
        began=began,
    )


def _graded(row: Row, end: Any, numbers: Mapping[str, float]) -> Row:
    if not isinstance(end, Closed):
        return replace(row, why="its journal has no graded end")
    sampled = int(numbers["sampled_tokens"]) if "sampled_tokens" in numbers else None
    turns = int(numbers["turns"]) if "turns" in numbers else row.turns
    return replace(row, stop=end.stop.value, reward=end.reward, why=why(end.info), sampled=sampled, turns=turns)


def _numbers(tally: bytes | None) -> dict[str, float]:
    words = text(tally).split()
    return {name: float(number) for name, number in zip(words[::2], words[1::2], strict=False)}


def _unreadable(id: str, run: str, wrong: str) -> Row:
    place = {"group": _group(id), "sample": int(id.split("/")[2])}
    return Row(key=id, job=id, run=run, env="", split="", task=0, state=UNREADABLE, why=short(wrong), **place)  # type: ignore[arg-type]

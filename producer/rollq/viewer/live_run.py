"""A run in Redis as a place with rollouts: an index in memory that reads only what changed since it was read last.

It only reads, and what it knows may be a second old. A job whose group is acknowledged is no longer in Redis: its row
stays as long as the page is served, its conversation does not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

from rollq.errors import ContractError, LedgerError
from rollq.events import Closed
from rollq.job import Job, Purpose, parse_id
from rollq.ledger.reader import LedgerReader
from rollq.ledger.records import sample_of
from rollq.ledger.replies import State
from rollq.ledger.stored import group_size, number, text
from rollq.viewer.place import Listing
from rollq.viewer.rows import Row, last_line, short, why
from rollq.wire.events import decode_event

READ_EVERY_S = 1.0
"""Seconds for which what was read last is still good."""
PAGE = 500
"""Jobs that are read in one round trip."""
ACKED = "acked"
OF_JOB = ("state", "attempt", "class", "reason", "turned", "claimed", "body")


@dataclass(frozen=True, slots=True)
class Glance:
    """The indexes of the run in Redis, read in one round trip."""

    groups: Mapping[str, str]
    """State by name: those that are open, ready or held."""
    queued: frozenset[str]
    leased: frozenset[str]
    dead: Sequence[str]


class LiveRun:
    """The rows of one run. `listing` reads what changed, at most every READ_EVERY_S seconds."""

    def __init__(self, reader: LedgerReader) -> None:
        self.reader = reader
        self._rows: dict[str, Row] = {}
        self._ids: dict[str, dict[str, None]] = {}
        """The jobs of each group."""
        self._bodies: dict[str, bytes] = {}
        """The first job of each group."""
        self._states: dict[str, str] = {}
        self._version = 0
        self._read_at = float("-inf")
        self._lock = Lock()

    def listing(self) -> Listing:
        """Raises LedgerError."""
        with self._lock:
            if time.monotonic() - self._read_at > READ_EVERY_S:
                self._read()
                self._read_at = time.monotonic()
            return Listing(rows=dict(self._rows), version=self._version, groups=dict(self._states))

    def _read(self) -> None:
        seen = self._glance()
        of_dead = dict.fromkeys(_group(id) for id in seen.dead)
        self._find_groups([name for name in {**seen.groups, **of_dead} if name not in self._ids])
        for id in seen.dead:  # all that is known of a group that was acknowledged before
            self._ids[_group(id)][id] = None
        gone = {**self._states, **of_dead}.keys() - seen.groups.keys()
        self._leave([name for name in gone if self._states.get(name) != ACKED])
        dead = frozenset(seen.dead)
        present = {**seen.groups, **of_dead}
        ids = [id for name, members in self._ids.items() if name in present for id in members]
        changed = [id for id in ids if self._may_have_changed(id, seen, dead)]
        for start in range(0, len(changed), PAGE):
            self._read_jobs(changed[start : start + PAGE])
        if any(self._states.get(name) != state for name, state in seen.groups.items()):
            self._states |= seen.groups
            self._version += 1

    def _glance(self) -> Glance:
        redis, keys = self.reader.redis, self.reader.keys
        pipe = redis.pipeline(transaction=True)
        places = [(state, purpose) for state in ("open", "ready", "held") for purpose in Purpose]
        for state, purpose in places:
            pipe.zrange(f"{keys.prefix}{state}:{purpose}", 0, -1)
        for key in (keys.queued, keys.leased, keys.dead):
            pipe.zrange(key, 0, -1)
        *groups, queued, leased, dead = self.reader.scripts.guard(keys.queued, pipe.execute)
        states = {text(name): state for (state, _), names in zip(places, groups, strict=True) for name in names}
        return Glance(
            groups=states,
            queued=frozenset(map(text, queued)),
            leased=frozenset(text(held).partition("#")[0] for held in leased),
            dead=[id for id in map(text, dead) if _is_job(id)],
        )

    def _find_groups(self, names: Sequence[str]) -> None:
        """Notes new groups, in the order of submission."""
        pipe, keys = self.reader.redis.pipeline(transaction=False), self.reader.keys
        for name in names:
            pipe.hmget(keys.group(name), "seq", "size", "spare", "body")
        found = zip(names, self.reader.scripts.guard("groups", pipe.execute), strict=True)
        for name, (_, size, spare, body) in sorted(found, key=lambda each: number(each[1][0]) or 0):
            self._ids[name], self._bodies[name], members = {}, body or b"", 0
            try:
                _, members = group_size(size, spare, keys.group(name)) if size else (0, 0)
            except LedgerError as e:
                id = f"{self.reader.run}/{name}/0"
                self._rows[id] = _unreadable(id, self.reader.run, str(e))
            self._ids[name] |= dict.fromkeys(f"{self.reader.run}/{name}/{sample}" for sample in range(members))

    def _leave(self, names: Sequence[str]) -> None:
        """Groups that are in no index any more: acknowledged, dropped, or deleted with their run."""
        for name, state in zip(names, self.reader.group_states(names) if names else (), strict=True):
            if self._states.get(name) == state:
                continue
            self._version += 1
            for id in self._ids[name]:
                row = self._rows.get(id)
                if row and not state:
                    del self._rows[id]
                elif row and state == ACKED and row.state == State.DONE:
                    self._rows[id] = replace(row, state=ACKED)
            if state:
                self._states[name] = state
            else:
                self._states.pop(name, None)
                del self._ids[name], self._bodies[name]

    def _may_have_changed(self, id: str, seen: Glance, dead: frozenset[str]) -> bool:
        row = self._rows.get(id)
        if row is None or id in seen.leased:  # a job that is played has new turns
            return True
        indexed = State.QUEUED if id in seen.queued else State.DEAD if id in dead else None
        return row.state != indexed if indexed else row.state in (State.QUEUED, State.LEASED, State.DEAD)

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
        try:
            state, attempt, failure, reason, turned, claimed, body = record
            if state is None:
                return None
            job = sample_of(body or self._bodies[_group(id)], id)
            row = _job_row(job, text(state), int(attempt or 0), int(turned or 0), float(claimed or 0.0))
            if row.state == State.DONE:
                return _graded(row, decode_event(end, id), _numbers(tally))
            return replace(row, failure=text(failure), why=short(last_line(text(reason))))
        except (ContractError, TypeError, ValueError) as e:
            return _unreadable(id, self.reader.run, str(e))


def _is_job(id: str) -> bool:
    """False for what another program wrote among the dead."""
    try:
        return bool(parse_id(id))
    except ContractError:
        return False


def _group(id: str) -> str:
    return id.split("/")[1]


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
    turns = int(numbers.get("turns", row.turns))
    return replace(row, stop=end.stop.value, reward=end.reward, why=why(end.info), sampled=sampled, turns=turns)


def _numbers(tally: bytes | None) -> dict[str, float]:
    words = text(tally).split()
    return {name: float(number) for name, number in zip(words[::2], words[1::2], strict=False)}


def _unreadable(id: str, run: str, wrong: str) -> Row:
    place = {"group": _group(id), "sample": int(id.split("/")[2])}
    return Row(key=id, job=id, run=run, env="", split="", task=0, state="unreadable", why=short(wrong), **place)  # type: ignore[arg-type]

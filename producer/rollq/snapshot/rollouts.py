"""The rollouts of one run in Redis, as values. Who lists them decides which to read again.

It only reads. What it reads of a damaged record is its error, which names the key; others are
whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollq.errors import ContractError, LedgerError
from rollq.events import Closed
from rollq.images import IMAGES, images_by_hash, references
from rollq.job import Job, Purpose, parse_id
from rollq.ledger.keys import RUNS
from rollq.ledger.reader import LedgerReader
from rollq.ledger.records import sample_of
from rollq.ledger.replies import JobState
from rollq.ledger.stored import count, group_size, number, text
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.snapshot.fleet import FleetSnapshot, read_one_run
from rollq.snapshot.run import FAILURES, PLACES, group_of
from rollq.trajectory import Trajectory
from rollq.wire.events import decode_event

OF_GROUP = ("seq", "size", "spare", "body", "purpose", "done", "at")
OF_JOB = (
    "state",
    "attempt",
    "class",
    "reason",
    "turned",
    "claimed",
    "body",
    "worker",
    "not_before",
    *FAILURES,
)


@dataclass(frozen=True, slots=True)
class Indexes:
    """The places of the run's groups and jobs, read in one round trip."""

    began: float | None
    """Unix time of the run's first submission; None if it is not listed."""
    groups: Mapping[str, str]
    """State by name: those that are open, ready or held."""
    queued: frozenset[str]
    leased: frozenset[str]
    dead: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group; a damaged one counts as one member."""

    seq: float
    """Place in the order of submission."""
    members: int
    body: bytes | LedgerError
    """The group's first job, encoded, or the error of an unreadable record."""
    size: int = 0
    """Graded members that the group needs."""
    graded: int = 0
    purpose: str = ""
    submitted: float | None = None
    """Unix time; None if the record does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A job, finished or not."""

    job: Job
    state: str
    attempt: int
    turns: int
    began: float
    """Unix time at which its attempt began. 0 if it is not known."""
    worker: str
    """The last one that claimed it."""
    not_before: float
    """Unix time until which it waits after a failure."""
    failures: int
    """Failures of earlier attempts."""
    failure: str
    reason: str
    """Class and reason of its last failure."""
    journaled: bool = False
    """True if it is a done job whose journal is there."""
    end: Closed | None = None
    """End of a done job; None when its journal does not say."""
    sampled: int | None = None
    """Sampled tokens of a done job, where they are known."""


class RedisAway(LedgerError):
    """Redis does not answer. Its data on disk is not lost."""


@contextmanager
def reachable(where: str) -> Iterator[None]:
    """Raises RedisAway when Redis is away. `where`: its address, without a password."""
    try:
        yield
    except CONNECTION_ERRORS as e:
        raise RedisAway(f"Redis at {where} does not answer: {e}") from e


class RolloutReader:
    """The rollouts of one run. Every method raises LedgerError, and redis's errors when Redis is
    away.
    """

    def __init__(self, connection: Any, run: str) -> None:
        self.run = run
        self._reader = LedgerReader(connection, run)

    def exists(self) -> bool:
        return self._reader.exists()

    def fleet(self, oldest: int = 1) -> FleetSnapshot:
        """The fleet with this run, and so many of its oldest groups of each place and purpose."""
        return read_one_run(self._reader, oldest)

    def group_states(self, names: Sequence[str]) -> list[str]:
        """See `LedgerReader.group_states`."""
        return self._reader.group_states(names) if names else []

    def indexes(self) -> Indexes:
        """A job that moves on while they are read is in the later one, too, or in none."""
        keys = self._reader.keys
        pipe = self._pipe()
        places = [(place, purpose) for place in PLACES for purpose in Purpose]
        pipe.zscore(RUNS, self.run)
        for place in places:
            pipe.zrange(keys.groups(*place), 0, -1)
        for key in (keys.queued, keys.leased, keys.dead):
            pipe.zrange(key, 0, -1)
        began, *groups, queued, leased, dead = self._reader.scripts.guard(keys.queued, pipe.execute)
        return Indexes(
            began=began,
            groups={
                text(name): place
                for (place, _), names in zip(places, groups, strict=True)
                for name in names
            },
            queued=frozenset(map(text, queued)),
            leased=frozenset(text(held).partition("#")[0] for held in leased),
            dead=[id for id in map(text, dead) if self._is_job(id)],
        )

    def groups(self, names: Sequence[str]) -> dict[str, GroupRecord]:
        keys = self._reader.keys
        records = self._replies(names, lambda pipe, name: pipe.hmget(keys.group(name), *OF_GROUP))
        return {name: _group_record(record, keys.group(name)) for name, record in records.items()}

    def rollouts(
        self, ids: Sequence[str], groups: Mapping[str, GroupRecord]
    ) -> dict[str, Rollout | ContractError | LedgerError | None]:
        """These jobs, in one or two round trips. `groups`: theirs, as `groups` gave them. A job
        that cannot be read has its error, and one without a record None.
        """
        keys = self._reader.keys
        records = self._replies(ids, lambda pipe, id: pipe.hmget(keys.job(id), *OF_JOB))
        done = [
            id
            for id, record in records.items()
            if isinstance(record, list) and record[0] == b"done"
        ]

        def ask_end(pipe: Any, id: str) -> None:
            pipe.lindex(keys.journal(id), -1)
            pipe.hget(keys.group(group_of(id)), f"tally:{id.rpartition('/')[2]}")

        ends = self._replies(done, ask_end, each=2)
        return {
            id: _rollout(id, groups[group_of(id)], record, ends.get(id))
            for id, record in records.items()
        }

    def rollout(
        self, job_id: str, attempt: int | None = None
    ) -> tuple[JobState, Trajectory, Mapping[str, bytes]]:
        """One job's state, its episode as `Client.trajectory` has it, and the files of its images
        by sha256. Before it is done, Redis has none.
        """
        state = self._reader.job(job_id)
        trajectory = self._reader.trajectory(job_id, attempt)
        if state is None:
            raise LedgerError(f"job {job_id} is unknown: run {self.run} has no such job")
        return state, trajectory, self._images(trajectory)

    def _images(self, trajectory: Trajectory) -> Mapping[str, bytes]:
        try:
            if not trajectory.graded or not references(trajectory.messages):
                return {}
            [with_images] = self._reader.read([trajectory.job.id], [IMAGES])
            return {} if isinstance(with_images, ContractError) else images_by_hash(with_images)
        except (ContractError, TypeError, ValueError):
            return {}

    def _is_job(self, id: str) -> bool:
        try:
            return parse_id(id)[0] == self.run
        except ContractError:
            return False

    def _pipe(self) -> Any:
        # A Redis that is out of memory refuses even to read in MULTI.
        return self._reader.redis.pipeline(transaction=False)

    def _replies(
        self, names: Sequence[str], ask: Callable[[Any, str], object], each: int = 1
    ) -> dict[str, Any]:
        """The reply for each name, or a list of `each` replies."""
        pipe = self._pipe()
        for name in names:
            ask(pipe, name)
        replies = self._reader.scripts.guard("jobs", partial(pipe.execute, raise_on_error=False))
        if each > 1:
            replies = [replies[start : start + each] for start in range(0, len(replies), each)]
        return dict(zip(names, replies, strict=True))


def _group_record(record: Any, key: str) -> GroupRecord:
    try:
        seq, size, spare, body, purpose, done, at = record
        graded, members = group_size(size, spare, key) if size else (0, 0)
        facts: dict[str, Any] = {
            "size": graded,
            "graded": count(done, key, "done"),
            "purpose": text(purpose),
            "submitted": number(at),
        }
    except TypeError:  # Redis refused to read it
        return GroupRecord(0, 1, LedgerError(f"{key} cannot be read: {record}"))
    except LedgerError as e:
        return GroupRecord(0, 1, e)
    return GroupRecord(number(seq) or 0, members, body or b"", **facts)


def _rollout(
    id: str, group: GroupRecord, record: Any, end: Any
) -> Rollout | ContractError | LedgerError | None:
    if isinstance(group.body, LedgerError):
        return group.body
    try:
        fields = dict(zip(OF_JOB, record, strict=True))
        if fields["state"] is None:
            return None
        return Rollout(
            job=sample_of(fields["body"] or group.body, id),
            state=text(fields["state"]),
            attempt=_whole(fields["attempt"]),
            began=_seconds(fields["claimed"]),
            worker=text(fields["worker"]),
            not_before=_seconds(fields["not_before"]),
            failures=sum(_whole(fields[name]) for name in FAILURES),
            failure=text(fields["class"]),
            reason=text(fields["reason"]),
            **_end_facts(id, end, _whole(fields["turned"])),
        )
    except (ContractError, LedgerError) as e:
        return e
    except (OverflowError, TypeError, ValueError) as e:
        return LedgerError(f"job {id} cannot be read: {e}")


def _whole(stored: bytes | None) -> int:
    return int(stored or 0)


def _seconds(stored: bytes | None) -> float:
    return float(stored or 0.0)


def _end_facts(id: str, end: Any, turns: int) -> dict[str, Any]:
    """Facts that the journal's last entry and the group's tally have of a done job."""
    if not end or end[0] is None:
        return {"turns": turns}
    closed = decode_event(end[0], id)
    tally = _numbers(end[1])
    facts: dict[str, Any] = {
        "turns": int(tally.get("turns", turns)),
        "journaled": True,
        "end": closed if isinstance(closed, Closed) else None,
    }
    if "sampled_tokens" in tally:
        facts["sampled"] = int(tally["sampled_tokens"])
    return facts


def _numbers(tally: bytes | None) -> dict[str, float]:
    """The numbers of a tally: names and numbers in turn."""
    words = text(tally).split()
    return {name: float(number) for name, number in zip(words[::2], words[1::2], strict=False)}

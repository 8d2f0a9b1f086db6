"""One run at one moment, as a value, and the reading of it: a script and two pipelines, however
many jobs it has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger.constants import CONFIRMED_S, LONGEST_BACKOFF_S
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Standing
from rollq.ledger.stored import number, text
from rollq.ledger.workers.time_spent import seconds_spent

PLACES = ("open", "ready", "held")
"""Places of a group until it is acknowledged or dropped."""
FAILURES = tuple(f"fail:{failure}" for failure in FailureClass)
"""Fields of a job's record that count its failures. One that is played again has none."""
LONGEST_LINE = 160
"""Characters of the reason of a failure that are told."""
SOME_JOBS = 20
"""Number of queued jobs whose queues are looked at, and of jobs whose last failure is."""


class OldGroup(NamedTuple):
    """One of the first groups of its place."""

    name: str
    submitted: float | None
    """Unix seconds; None if the record does not say."""
    started: int | None
    """The step that was published when its first member was first claimed."""
    trains: bool
    """True if it is for training, not for an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """State of a run."""

    run: str
    at: float
    """Unix seconds on Redis's clock."""
    counts: Mapping[str, Any]
    """See `LedgerReader.stats`."""
    standings: Mapping[Purpose, Standing]
    groups: Mapping[str, Sequence[OldGroup]] = field(
        default_factory=lambda: dict.fromkeys(PLACES, ())
    )
    """The first groups of each of PLACES; those that are held in the order in which their holds
    end.
    """
    reaped: float | None = None
    """Time at which a worker last looked for lost and due jobs."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of all episodes, by the part for which they waited."""
    tokenizer: str = ""
    """Hash of the run's tokenizer; empty while it is not pinned."""
    template: str = ""
    adapter: str = ""
    """The LoRA adapter that samples. Empty without one."""
    queues: Sequence[str] = ()
    """The queues of some of the queued jobs."""
    overdue_s: float = 0.0
    """Seconds for which a queued job should have had its message at the broker. 0 if none is late.
    """
    unclaimed_s: float = 0.0
    """Seconds for which such a message has been at the broker and the job was not claimed."""
    looked_at: int = 0
    """Number of jobs whose last failure was looked up: some that are being played, else some that
    are queued.
    """
    failing: Mapping[str, str] = field(default_factory=dict)
    """Jobs among them that have failed before, with class and reason of the last time."""

    @property
    def exists(self) -> bool:
        """True if a producer has submitted to it or pinned something for it."""
        return self.standings[Purpose.TRAIN].exists

    @property
    def step(self) -> int | None:
        """The step that was published last."""
        return self.counts["policy"]["step"] if self.counts["policy"] else None

    @property
    def max_staleness(self) -> int | None:
        """The most that the run allows."""
        return self.counts["admission"]["max_staleness"] if self.counts["admission"] else None

    @property
    def oldest(self) -> OldGroup | None:
        """The open group that was submitted first."""
        return next(iter(self.groups["open"]), None)

    @property
    def oldest_s(self) -> float | None:
        """Seconds since then."""
        return (
            max(0.0, self.at - self.oldest.submitted)
            if self.oldest and self.oldest.submitted
            else None
        )

    @property
    def has_work(self) -> bool:
        return any(
            self.counts[name] for name in ("queued", "leased", "groups_ready", "groups_held")
        )

    @property
    def reaper_lag_s(self) -> float:
        """Seconds since a worker last looked for lost and due jobs; 0 without jobs. Before the
        first look, since the oldest open group was submitted.
        """
        if not (self.counts["queued"] or self.counts["leased"]):
            return 0.0
        return self.age_s("open") if self.reaped is None else max(0.0, self.at - self.reaped)

    def age_s(self, place: str, *, trains: bool = False) -> float:
        """Seconds since the oldest of that place's first groups was submitted, with `trains` of
        those for training; 0 where that is not known.
        """
        ages = [0.0]
        for group in self.groups[place]:
            if group.submitted is not None and (group.trains or not trains):
                ages.append(self.at - group.submitted)
        return max(ages)

    def staleness(self, *places: str) -> int | None:
        """Steps that were published since the stalest of the places' first groups for training
        began; None before any step.
        """
        started = []
        for place in places:
            for group in self.groups[place]:
                if group.trains and group.started is not None:
                    started.append(group.started)
        if not started or self.step is None:
            return None
        return self.step - min(started)


class _Indexes(NamedTuple):
    """Names that a run's indexes hold, and fields of the run."""

    fields: Sequence[bytes | None]
    spent: Any
    groups: Mapping[str, Sequence[str]]
    """Names of the first groups, by place."""
    queued: Sequence[bytes]
    """Some queued jobs."""
    due: Sequence[tuple[bytes, float]]
    """The queued job that is overdue the longest, with its score."""
    sent: Sequence[tuple[bytes, float]]
    """The queued job whose message has been at the broker the longest, with its score."""
    leased: Sequence[bytes]
    """Some jobs that are being played."""


def read_run(reader: LedgerReader, at: float, oldest: int = 1) -> RunSnapshot:
    """`at`: Redis's clock. `oldest`: number of groups to read of each place and purpose. Raises
    LedgerError, which names the key, for records that cannot be read.
    """
    standings, counts = reader.snapshot()
    if not standings[Purpose.TRAIN].exists:
        return RunSnapshot(run=reader.run, at=at, counts=counts, standings=standings)
    indexes = _indexes(reader, at, oldest)
    members = indexes.leased or indexes.queued
    ids = list(dict.fromkeys(text(member).partition("#")[0] for member in members))
    of_queued = list(dict.fromkeys(group_of(text(job)) for job in indexes.queued))
    groups, queues, failures = _records(reader, indexes.groups, of_queued, ids)
    tokenizer, template, beat, adapter = indexes.fields
    return RunSnapshot(
        run=reader.run,
        at=at,
        counts=counts,
        standings=standings,
        groups=groups,
        reaped=number(beat),
        seconds=seconds_spent(indexes.spent),
        tokenizer=text(tokenizer),
        template=text(template),
        adapter=text(adapter),
        queues=sorted({text(queue) for queue in queues if queue}),
        overdue_s=max(0.0, at - indexes.due[0][1]) if indexes.due else 0.0,
        unclaimed_s=max(0.0, at + CONFIRMED_S - indexes.sent[0][1]) if indexes.sent else 0.0,
        looked_at=len(ids),
        failing=_failing(ids, failures),
    )


def group_of(job_id: str) -> str:
    """The name of the job's group."""
    return job_id.partition("/")[2].partition("/")[0]


def _failing(jobs: Sequence[str], records: Sequence[Any]) -> dict[str, str]:
    """The last failure of each of these jobs that counts one, by job."""
    lines = {}
    for job, (failure, reason, *times) in zip(jobs, records, strict=True):
        if failure and any(map(number, times)):
            lines[job] = failure_line(text(failure), text(reason))
    return lines


def _indexes(reader: LedgerReader, at: float, oldest: int) -> _Indexes:
    keys = reader.keys
    pipe = reader.redis.pipeline(transaction=False)
    pipe.hmget(keys.meta, "tokenizer_hash", "template_hash", "beat", "adapter")
    pipe.hvals(keys.spent)
    pipe.zrange(keys.queued, 0, SOME_JOBS - 1)
    # What was interrupted is due at once, which no time says: its score is below 1.
    pipe.zrangebyscore(keys.queued, 1, at, start=0, num=1, withscores=True)
    # A job is due when its backoff ends, or long after its message went out.
    pipe.zrangebyscore(
        keys.queued, at + 2 * LONGEST_BACKOFF_S, "+inf", start=0, num=1, withscores=True
    )
    pipe.zrange(keys.leased, 0, SOME_JOBS - 1)
    places = [(place, purpose) for place in PLACES for purpose in Purpose]
    for place, purpose in places:
        pipe.zrange(keys.groups(place, purpose), 0, oldest - 1, withscores=True)
    fields, spent, queued, due, sent, leased, *rows = reader.scripts.guard("indexes", pipe.execute)
    scores: dict[str, dict[str, float]] = {place: {} for place in PLACES}
    for (place, _), row in zip(places, rows, strict=True):
        scores[place] |= {text(name): score for name, score in row}
    groups = {place: sorted(names, key=names.__getitem__) for place, names in scores.items()}
    return _Indexes(fields, spent, groups, queued, due, sent, leased)


def _records(
    reader: LedgerReader,
    places: Mapping[str, Sequence[str]],
    of_queued: Sequence[str],
    jobs: Sequence[str],
) -> tuple[dict[str, list[OldGroup]], list[Any], list[Any]]:
    """The groups of the places, the queues of the groups `of_queued`, and the last failures of the
    jobs.
    """
    keys = reader.keys
    pipe = reader.redis.pipeline(transaction=False)
    for names in places.values():
        for name in names:
            pipe.hmget(keys.group(name), "at", "started", "purpose")
    for name in of_queued:
        pipe.hget(keys.group(name), "queue")
    for id in jobs:
        pipe.hmget(keys.job(id), "class", "reason", *FAILURES)
    replies = iter(reader.scripts.guard("records", pipe.execute))
    groups = {place: [_group(name, *next(replies)) for name in places[place]] for place in places}
    queues = [next(replies) for _ in of_queued]
    return groups, queues, [*replies]


def _group(name: str, at: bytes | None, started: bytes | None, purpose: bytes | None) -> OldGroup:
    step = int(started) if started and started.isdigit() else None
    return OldGroup(name, number(at), step, text(purpose) == Purpose.TRAIN)


def failure_line(failure: str, reason: str) -> str:
    """Class of a job's last failure, and the first line of its reason: short, and in printable
    characters, because others wrote it.
    """
    first, *_ = reason.strip().splitlines() or [""]
    if len(first) > LONGEST_LINE:
        first = first[: LONGEST_LINE - 3] + "..."
    signs = (sign if sign.isprintable() else repr(sign)[1:-1] for sign in first)
    return f"{failure}: {''.join(signs)}"

"""What is known of a run while a producer or a consumer waits. It only reads, and judges nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollq.job import Purpose
from rollq.ledger.constants import CONFIRMED_S, LONGEST_BACKOFF_S
from rollq.ledger.reader import LedgerReader, runs
from rollq.ledger.replies import Admission, Standing
from rollq.ledger.stored import text
from rollq.ledger.unfinished import failure_line
from rollq.ledger.workers.live_workers import LiveWorker, live_workers
from rollq.servers.health import server_info
from rollq.servers.refusal import why_no_writes

SOME_JOBS = 20
"""Number of queued jobs whose queues are looked at, and of jobs whose last failure is."""
LATE_S = 10.0
"""Seconds after which a job's message is late. The reaper publishes once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a run while a producer or a consumer waits. Groups are those of one purpose."""

    run: str
    known: bool = True
    """Whether anything was ever submitted to the run."""
    runs: Sequence[str] = ()
    """The runs that exist, when this one does not."""
    purpose: Purpose = Purpose.TRAIN
    open: int = 0
    ready: int = 0
    held: int = 0
    acked: int = 0
    """Groups of both purposes, as is `dropped`."""
    dropped: int = 0
    dead: int = 0
    """Jobs of both purposes, looked up when no group is open."""
    elsewhere: int = 0
    """Groups of the other purpose that are not acknowledged."""
    sealed: bool = False
    queued: int = 0
    """Jobs of both purposes, as is `leased`."""
    leased: int = 0
    ahead: int = 0
    """The limit at which a producer waits; 0: none waits there."""
    admission: Admission | None = None
    published: bool = False
    """Whether a policy was ever published."""
    blocked: bool = False
    """Whether a producer waits for admission."""
    wanted: int = 0
    """Groups that a consumer waits for; 0: none waits."""
    own: int = 0
    """Groups that the caller itself holds."""
    queues: Sequence[str] = ()
    """The queues of the run's jobs."""
    overdue_s: float = 0.0
    """Seconds for which a queued job should have had its message at the broker; 0: none is late."""
    unclaimed_s: float = 0.0
    """Seconds for which such a message has been at the broker and the job was not claimed."""
    refuses: str = ""
    """Why Redis takes no writes."""
    looked_at: int = 0
    """Number of jobs whose last failure was looked up: some that are being played, else some that are queued."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """Those of them that have failed before, with class and reason of the last time."""
    tokenizer: str = ""
    """Hash of the run's tokenizer; empty while it is not fixed."""
    template: str = ""
    workers: Sequence[LiveWorker] = field(default_factory=list)

    @property
    def serving(self) -> Sequence[LiveWorker]:
        """The live workers that take jobs from the queues of the run's jobs."""
        return [worker for worker in self.workers if not self.queues or set(self.queues) & set(worker.queues)]

    @property
    def misfits(self) -> Mapping[str, str]:
        """Those of them that cannot play the run all the same, with the reason and the remedy."""
        whys = {worker.name: dict(worker.left_alone).get(self.run, "") for worker in self.serving}
        for worker in self.serving:
            if not worker.plays(self.tokenizer, self.template):
                whys[worker.name] = (
                    f"it has tokenizer {worker.tokenizer[:12]} and chat template {worker.template[:12]}, the run"
                    f" {self.tokenizer[:12]} and {self.template[:12]}: start it with the run's `--tokenizer` and"
                    " `--template`"
                )
        return {name: why for name, why in whys.items() if why}

    @property
    def able(self) -> Sequence[LiveWorker]:
        """Those of them that can."""
        misfits = self.misfits
        return [worker for worker in self.serving if worker.name not in misfits]


def read_facts(
    reader: LedgerReader,
    purpose: Purpose,
    *,
    wanted: int = 0,
    own: int = 0,
    ahead: int = 0,
    workers: Sequence[LiveWorker] | None = None,
    refuses: str | None = None,
) -> Facts:
    """See `waits.explain`. Raises LedgerError."""
    standing = reader.standing(purpose)
    if not standing.known:
        return Facts(run=reader.run, known=False, runs=runs(reader.redis))
    bound = standing.admission
    full = bound is not None and bound.capacity <= 0
    if full and standing.unacknowledged < ahead:
        ahead = 0  # it is not what the producer waits for
    facts = Facts(
        run=reader.run,
        purpose=purpose,
        open=standing.open,
        ready=standing.ready,
        held=standing.held,
        sealed=standing.sealed,
        queued=standing.queued,
        leased=standing.leased,
        ahead=ahead or standing.full or 0,
        admission=bound,
        published=standing.published is not None,
        blocked=full and standing.full == 0,
        wanted=wanted or _missed(standing),
        own=own,
        refuses=why_no_writes(server_info(reader.redis)) if refuses is None else refuses,
    )
    if not facts.open:
        return _with_totals(facts, reader)
    return _with_workers(facts, reader, workers) if facts.queued or facts.leased else facts


def _missed(standing: Standing) -> int:
    """The groups that a waiting consumer cannot go on without. One that has the batch of its step, and asks for a part
    of the next one, reads ahead as asynchronous trainers do."""
    bound = standing.admission
    if bound and standing.held and standing.wanted < bound.groups_per_batch:
        given = standing.held + bound.trained
        return standing.wanted if given < (bound.step + 1) * bound.groups_per_batch else 0
    return standing.wanted


def _with_totals(facts: Facts, reader: LedgerReader) -> Facts:
    other = reader.standing(Purpose.EVAL if facts.purpose is Purpose.TRAIN else Purpose.TRAIN)
    stats = reader.stats()
    acked, dropped = stats["groups_acked"], stats["groups_dropped"]
    return replace(facts, acked=acked, dropped=dropped, dead=stats["dead"], elsewhere=other.unacknowledged)


def _with_workers(facts: Facts, reader: LedgerReader, workers: Sequence[LiveWorker] | None) -> Facts:
    fields = ("tokenizer_hash", "template_hash")
    found = reader.scripts.guard(reader.keys.meta, lambda: reader.redis.hmget(reader.keys.meta, *fields))
    tokenizer, template = map(text, found)
    workers = live_workers(reader.redis) if workers is None else workers
    facts = replace(facts, tokenizer=tokenizer, template=template, workers=workers)
    if facts.queued:
        facts = _with_queued(facts, reader)
    return _with_failing(facts, reader)


def _with_queued(facts: Facts, reader: LedgerReader) -> Facts:
    """With the queues of some of the queued jobs, and with how long the first ones wait for and at the broker."""
    key, now, pipe = reader.keys.queued, reader.scripts.now(), reader.redis.pipeline(transaction=False)
    pipe.zrange(key, 0, SOME_JOBS - 1)
    # What was interrupted is due at once, which no time says: its score is below 1.
    pipe.zrangebyscore(key, 1, now, start=0, num=1, withscores=True)
    # A job is due when its backoff ends, or long after its message went out.
    pipe.zrangebyscore(key, now + 2 * LONGEST_BACKOFF_S, "+inf", start=0, num=1, withscores=True)
    first, due, published = reader.scripts.guard(key, pipe.execute)
    for group in dict.fromkeys(text(job_id).partition("/")[2].partition("/")[0] for job_id in first):
        pipe.hget(reader.keys.group(group), "queue")
    found = reader.scripts.guard(key, pipe.execute)
    return replace(
        facts,
        queues=sorted({text(queue) for queue in found if queue}),
        overdue_s=max(0.0, now - due[0][1]) if due else 0.0,
        unclaimed_s=max(0.0, now + CONFIRMED_S - published[0][1]) if published else 0.0,
    )


def _with_failing(facts: Facts, reader: LedgerReader) -> Facts:
    """With those of some jobs being played that have failed before; if none is played, of some queued ones."""
    keys, pipe = reader.keys, reader.redis.pipeline(transaction=False)
    key = keys.leased if facts.leased else keys.queued
    found = reader.scripts.guard(key, lambda: reader.redis.zrange(key, 0, SOME_JOBS - 1))
    ids = list(dict.fromkeys(text(member).partition("#")[0] for member in found))
    for id in ids:
        pipe.hmget(keys.job(id), "class", "reason")
    last = reader.scripts.guard("jobs", pipe.execute)
    failing = {id: failure_line(*each) for id, each in zip(ids, last, strict=True) if each[0]}
    return replace(facts, looked_at=len(ids), failing=failing)

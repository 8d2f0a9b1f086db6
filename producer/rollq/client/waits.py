"""Says of a wait who waits for whom, and what to do about it.

Producers, consumers and workers meet only in Redis, so each sees only that nothing happens. `explain` puts together
what the run's indexes, the waiting consumers, the waiting producer and the live workers tell, in one or two sentences
that are the same on every side.
"""

import difflib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rollq.errors import LedgerError
from rollq.job import QUEUE, Purpose, parse_id
from rollq.ledger.constants import HOLD_S, LEASE_S
from rollq.ledger.reader import LedgerReader, runs
from rollq.ledger.replies import Admission, Standing
from rollq.ledger.workers.live_workers import AWAY, LiveWorker, live_workers

log = logging.getLogger("rollq")

FIRST_S = 5.0
"""Seconds of waiting after which a wait is explained for the first time."""
EVERY_S = 60.0
"""Seconds between two explanations of the same wait."""
LISTED = 5
"""Number of runs that an explanation names."""
SOME_JOBS = 20
"""Number of queued jobs whose queues are looked at."""


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
    tokenizer: str = ""
    """Hash of the run's tokenizer; empty while it is not fixed."""
    template: str = ""
    workers: Sequence[LiveWorker] = field(default_factory=list)


def explain(
    reader: LedgerReader, purpose: Purpose = Purpose.TRAIN, *, wanted: int = 0, own: int = 0, ahead: int = 0
) -> str:
    """Who waits for whom in this run and what to do; empty when the wait is an ordinary one.

    A consumer gives the number of groups that it wants and those that it holds itself, a producer the limit at which it
    waits, and anybody else neither. It only reads. It raises no LedgerError, because the wait itself meets the same
    one.
    """
    try:
        return why(_facts(reader, purpose, wanted, own, ahead))
    except LedgerError as e:
        return str(e)


def why(facts: Facts) -> str:
    """The explanation; empty when what is waited for is under way."""
    for case in (_unknown, _each_other, _unread, _bounded, _exhausted, _another_consumer, _unplayed):
        if text := case(facts):
            return f"run {facts.run}: {text}"
    return ""


def other_runs(run: str, runs: Sequence[str]) -> str:
    """What to say of a run that does not exist: the one that was meant, and the latest of those that exist."""
    if not runs:
        return "there are no runs yet"
    close = difflib.get_close_matches(run, runs, 1)
    shown, more = runs[: -LISTED - 1 : -1], len(runs) - LISTED
    listed = f"runs there: {', '.join(shown)}" + (f" and {more} more (rollq stats lists them)" if more > 0 else "")
    return (f"did you mean {close[0]!r}? " if close else "") + listed


class WaitLog:
    """Logs the explanation of one wait after FIRST_S seconds, and then every EVERY_S seconds."""

    def __init__(self, explain: Callable[[], str]) -> None:
        self._explain = explain
        self._next = time.monotonic() + FIRST_S

    def look(self) -> None:
        """Called between two tries. Logs the explanation when it is due."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        if text := self._explain():
            log.warning("%s", text)


def _unknown(f: Facts) -> str:
    if f.known:
        return ""
    if f.run in f.runs:  # a producer opened it and ended before its first group
        return "nothing was submitted to it yet. A consumer waits until jobs are"
    return f"it does not exist yet; {other_runs(f.run, f.runs)}. A consumer waits until jobs are submitted to it"


def _each_other(f: Facts) -> str:
    if not f.ahead or f.sealed or f.wanted <= f.ready + f.open:
        return ""
    return (
        f"a producer waits while {f.ahead} groups are unacknowledged ({_places(f)}), and a consumer waits for"
        f" {_groups(f.wanted)} before it acknowledges: acknowledge each batch before you ask for the next one, ask for"
        f" fewer groups, or submit with an `ahead` of at least {f.held + f.wanted}"
    )


def _unread(f: Facts) -> str:
    if not f.ahead or f.sealed or f.wanted or not (f.ready or f.held):
        return ""
    waits = f"a producer waits while {f.ahead} groups are unacknowledged ({_places(f)})"
    if f.held:
        return f"{waits}: the consumer that holds {f.held} of them has to acknowledge its batch (batch.ack())"
    purpose = "" if f.purpose is Purpose.TRAIN else f" --purpose {f.purpose}"
    return (
        f"{waits}, and no consumer takes them: start a trainer or `rollq pull --run {f.run} --groups"
        f" {f.ready}{purpose}`, or submit with a larger `ahead`"
    )


def _bounded(f: Facts) -> str:
    """Admission lets nothing in, and nothing is being played that could change it."""
    bound = f.admission
    if bound is None or bound.capacity > 0 or f.sealed or f.open or not (f.blocked or f.wanted > f.ready):
        return ""
    counts = (
        f"admission lets no more in ({_places(f)}, {bound.trained} trained; step {bound.step}, batches of"
        f" {bound.groups_per_batch}, max_staleness {bound.max_staleness})"
    )
    if f.wanted > f.ready:
        back = f"; what a dead consumer held comes back within {HOLD_S:g} s" if f.held > f.own else ""
        return f"a consumer waits for {_groups(f.wanted)}, and {counts}: {_unpublished(f, bound)}{back}"
    if f.held:
        return ""  # they are being trained on
    if f.ready and not f.wanted:
        take = f"start a trainer or `rollq pull --run {f.run} --groups {min(f.ready, bound.groups_per_batch)}`"
        return f"a producer waits, because {counts}, and no consumer takes the groups: {take}"
    return "" if f.ready else f"a producer waits, because {counts}: {_unpublished(f, bound)}"


def _unpublished(f: Facts, bound: Admission) -> str:
    """What the trainer has to publish."""
    call, given = f"`client.publish({bound.step + 1})` or `rollq publish`", f.held + bound.trained
    if not f.published:
        return f"nothing was ever published. After each batch, once the engines serve its weights, call {call}"
    if given >= (bound.step + 2) * bound.groups_per_batch:
        return (
            f"the trainer was given {given} groups, and each step has {bound.groups_per_batch}. Take one batch a step,"
            f" and publish after each one, with the number of batches as the step: {call}"
        )
    return f"step {bound.step + 1} is not published yet. Once the engines serve its weights, call {call}"


def _exhausted(f: Facts) -> str:
    if f.sealed or f.open or f.wanted <= f.ready:
        return ""
    waits = f"a consumer waits for {_groups(f.wanted)}, and no group is being played"
    if not (f.ready or f.held) and f.elsewhere:
        other = Purpose.EVAL if f.purpose is Purpose.TRAIN else Purpose.TRAIN
        return f"{waits}: its groups are for {other}; ask for them with `--purpose {other}` or `purpose=`"
    if not (f.ready or f.held or f.acked or f.dropped):
        return f"{waits}: nothing was submitted to it; see `rollq submit`"
    counts = f"{waits}: {_places(f)}, {f.acked} acknowledged, {f.dropped} dropped"
    dead = f"`rollq dead --run {f.run}` says why groups were dropped, and `rollq requeue` plays them again. "
    return (
        f"{counts}. {dead if f.dropped else ''}Submit more jobs{f', ask for at most {f.ready}' if f.ready else ''}, or"
        " seal the run if no more come (`--seal`, `Client.seal()`). If it was sealed, Redis has lost the seal: repeat"
        " the producer's line"
    )


def _another_consumer(f: Facts) -> str:
    if not f.sealed or f.open or f.wanted <= f.ready or f.held <= f.own:
        return ""
    return (
        f"a consumer waits for {_groups(f.held - f.own)} of another consumer, which acknowledges them or gives them"
        f" back; if it died, they come within {HOLD_S:g} s"
    )


def _unplayed(f: Facts) -> str:
    if not f.open or (f.wanted and f.wanted <= f.ready) or not (f.queued or f.leased):
        return ""
    jobs = f"{f.queued} job{' is' if f.queued == 1 else 's are'} queued and {f.leased} being played"
    if not f.workers:
        back = f"; what dead workers played comes back within {LEASE_S:g} s" if f.leased else ""
        return f"{jobs}, and no worker is alive: start `rollq worker{_queues(f)}`{back}"
    serving = [worker for worker in f.workers if not f.queues or set(f.queues) & set(worker.queues)]
    if not serving:
        theirs = ", ".join(sorted({queue for worker in f.workers for queue in worker.queues}))
        return (
            f"{jobs}, in queue {', '.join(f.queues)}, and the live workers serve {theirs}: start `rollq"
            f" worker{_queues(f)}`"
        )
    able = [worker for worker in serving if worker.plays(f.tokenizer, f.template)]
    if not able:
        return (
            f"{jobs}, with tokenizer {f.tokenizer[:12]} and chat template {f.template[:12]}; the live workers have"
            f" {', '.join(sorted({f'{w.tokenizer[:12]} and {w.template[:12]}' for w in serving}))}: start a worker with"
            " the run's `--tokenizer`"
        )
    if all(worker.engine == AWAY for worker in able):
        return (
            f"{jobs}, and the engine of {_live(able)} that may play them is away: start it, or check `--engine`."
            " Nothing is lost meanwhile"
        )
    if not f.leased and all(worker.busy >= worker.slots for worker in able):
        slots = sum(worker.slots for worker in able)
        return f"{jobs}: all {slots} slots of {_live(able)} play other runs; more workers would help"
    return ""


def _queues(f: Facts) -> str:
    return "" if set(f.queues) <= {QUEUE} else f" --queues {','.join(f.queues)}"


def _live(workers: Sequence[LiveWorker]) -> str:
    return "the only live worker" if len(workers) == 1 else f"all {len(workers)} live workers"


def _groups(number: int) -> str:
    return f"{number} group" + ("" if number == 1 else "s")


def _places(f: Facts) -> str:
    return f"{f.open} open, {f.ready} ready, {f.held} held"


def _facts(reader: LedgerReader, purpose: Purpose, wanted: int, own: int, ahead: int) -> Facts:
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
    )
    if not facts.open:
        return _with_totals(facts, reader)
    return _with_workers(facts, reader) if facts.queued or facts.leased else facts


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
    return replace(facts, acked=acked, dropped=dropped, elsewhere=other.unacknowledged)


def _with_workers(facts: Facts, reader: LedgerReader) -> Facts:
    fields = ("tokenizer_hash", "template_hash")
    found = reader.scripts.guard(reader.keys.meta, lambda: reader.redis.hmget(reader.keys.meta, *fields))
    tokenizer, template = ((value or b"").decode() for value in found)
    workers = live_workers(reader.redis)
    return replace(facts, tokenizer=tokenizer, template=template, queues=_queued_in(reader), workers=workers)


def _queued_in(reader: LedgerReader) -> list[str]:
    """The queues of some of the run's queued jobs."""
    ids = reader.scripts.guard(reader.keys.queued, lambda: reader.redis.zrange(reader.keys.queued, 0, SOME_JOBS - 1))
    groups = dict.fromkeys(parse_id(job_id.decode())[1] for job_id in ids)
    pipe = reader.redis.pipeline(transaction=False)
    for group in groups:
        pipe.hget(reader.keys.group(group), "queue")
    found = reader.scripts.guard(reader.keys.queued, pipe.execute)
    return sorted({queue.decode() for queue in found if queue})

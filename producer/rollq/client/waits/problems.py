"""The waits that end only if someone does something, and what that is. Pure: it judges `Facts`."""

import difflib
from collections.abc import Sequence

from rollq.client.waits.facts import LATE_S, Facts
from rollq.client.waits.troubles import idle_engines, misfits, troubles
from rollq.job import QUEUE, Purpose
from rollq.ledger.constants import HOLD_S, LEASE_S
from rollq.ledger.replies import Admission
from rollq.ledger.workers.live_workers import AWAY, READY, SILENT_S, LiveWorker

LISTED = 5
"""Number of runs that an explanation names."""


def problem(facts: Facts) -> str:
    """Who waits for whom and what to do; empty when what is waited for is under way."""
    cases = (_refusing, _unknown, _each_other, _unread, _bounded, _exhausted, _another_consumer, _unplayed)
    return next(filter(None, (case(facts) for case in cases)), "")


def other_runs(run: str, runs: Sequence[str]) -> str:
    """What to say of a run that does not exist: the one that was meant, and the latest of those that exist."""
    if not runs:
        return "there are no runs yet"
    close = difflib.get_close_matches(run, runs, 1)
    shown, more = runs[: -LISTED - 1 : -1], len(runs) - LISTED
    listed = f"runs there: {', '.join(shown)}" + (f" and {more} more (rollq stats lists them)" if more > 0 else "")
    return (f"did you mean {close[0]!r}? " if close else "") + listed


def _refusing(f: Facts) -> str:
    return f"{f.refuses.rstrip('.')}. {f.queued} queued, {f.leased} being played" if f.refuses else ""


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
    call, given = f"`client.publish({bound.step + 1})` or `rollq engines publish`", f.held + bound.trained
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
    if f.held > f.own:
        counts += f". {_of_another(f)}"
    dead = f"`rollq jobs list {f.run}` says why, `rollq jobs requeue` plays them again. " if f.dropped else ""
    fewer = f", ask for at most {f.ready}" if f.ready else ""
    return (
        f"{counts}. {dead}Submit more jobs{fewer}, or seal the run (`--seal`, `Client.seal()`; again, if it was sealed:"
        " Redis has lost the seal)"
    )


def _another_consumer(f: Facts) -> str:
    if not f.sealed or f.open or f.wanted <= f.ready or f.held <= f.own:
        return ""
    return f"a consumer waits for {_groups(f.held - f.own)} of another consumer. {_of_another(f)}"


def _of_another(f: Facts) -> str:
    return (
        f"Another consumer holds {_groups(f.held - f.own)} and has not acknowledged them (batch.ack()). They come when"
        f" it gives them back, or within {HOLD_S:g} s if it died"
    )


def _unplayed(f: Facts) -> str:
    if not f.open or (f.wanted and f.wanted <= f.ready) or not (f.queued or f.leased):
        return ""
    jobs = f"{f.queued} job{' is' if f.queued == 1 else 's are'} queued and {f.leased} being played"
    back = f"; what dead workers played comes back within {LEASE_S:g} s" if f.leased else ""
    if not f.workers:
        return f"{jobs}, and no worker is alive: start `rollq worker{_queues(f)}`{back}"
    if not f.serving:
        theirs = ", ".join(sorted({queue for worker in f.workers for queue in worker.queues}))
        return (
            f"{jobs}, in queue {', '.join(f.queues)}, and the live workers serve {theirs}: start `rollq"
            f" worker{_queues(f)}`"
        )
    able = f.able
    if not able:
        # One that left a job to others may play the rest of what it has.
        left = f.leased and any(worker.plays(f.tokenizer, f.template) for worker in f.serving)
        return "" if left else f"no live worker fits: {misfits(f)}. {jobs}"
    if silent := min(worker.age_s for worker in able) >= SILENT_S and max(worker.age_s for worker in able):
        return (
            f"{jobs}, and nothing was heard of {_live(able)} for {silent:g} s: if it died, start `rollq"
            f" worker{_queues(f)}`{back}"
        )
    if text := _engines(able):
        return f"{text} {jobs}"
    if not f.leased and all(worker.busy >= worker.slots for worker in able):
        slots, wrong = sum(worker.slots for worker in able), troubles(f)
        more = "" if wrong else "; more workers would help"
        return f"{wrong} {jobs}: all {slots} slots of {_live(able)} play other runs{more}".lstrip()
    if f.overdue_s >= LATE_S:
        return (
            f"{jobs}; for {f.overdue_s:.0f} s no message of a queued job has reached the broker: check the workers'"
            " `--broker` with `rollq doctor`, and their logs"
        )
    if f.unclaimed_s >= LATE_S and not f.leased and not any(worker.busy for worker in able):
        return (
            f"{jobs}; a queued job has had its message at the broker for {f.unclaimed_s:.0f} s, and {_live(able)} did"
            " not take it: check that the broker is up, and that workers and producers have the same `--broker`; the"
            " workers' logs say what they refuse"
        )
    return ""


def _engines(able: Sequence[LiveWorker]) -> str:
    """Why no engine of these workers generates; empty when one may."""
    if all(worker.engine == AWAY for worker in able):
        return (
            f"the engine of {_live(able)} that may play them is away: start it, or check `--engine`. Nothing is lost"
            " meanwhile."
        )
    stuck = all(worker.engines and all(one.state != READY for one in worker.engines) for worker in able)
    return idle_engines(able) if stuck else ""


def _queues(f: Facts) -> str:
    return "" if set(f.queues) <= {QUEUE} else f" --queues {','.join(f.queues)}"


def _live(workers: Sequence[LiveWorker]) -> str:
    return "the only live worker" if len(workers) == 1 else f"all {len(workers)} live workers"


def _groups(number: int) -> str:
    return f"{number} group" + ("" if number == 1 else "s")


def _places(f: Facts) -> str:
    return f"{f.open} open, {f.ready} ready, {f.held} held"

"""What holds a run or the whole fleet up, and the remedy: it judges a snapshot, first cause first,
and asks nothing.

A problem ends only if someone does something. Then comes what is wrong with some workers or engines
while others go on. At last comes what an ordinary wait is for; no advice for more workers follows a
trouble. The same is said on every side: to producers, consumers, and people who look on.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rollq.job import Purpose
from rollq.ledger.workers.live_workers import SILENT_S, LiveWorker, Wait
from rollq.snapshot.fleet import FleetSnapshot
from rollq.snapshot.group_waits import group_problem
from rollq.snapshot.run_wait import RunWait
from rollq.snapshot.worker_troubles import nothing_heard, troubles, unplayed

LISTED = 5
"""Number of runs that an explanation names."""
TAKEN = 0.9
"""Share of the slots from which on they count as taken: there is always one between two jobs."""


def problem(w: RunWait) -> str:
    """Who waits for whom in this run and what to do; empty when what is waited for is under way."""
    if refuses := w.fleet.server.trouble:
        text = f"{refuses.rstrip('.')}. {_under_way(w)}"
    else:
        text = _unknown(w) or group_problem(w) or unplayed(w)
    return f"run {w.name}: {text}" if text else ""


def run_holdup(waits: Sequence[RunWait]) -> str:
    """What holds runs up, as these see it: a problem, else what the first ordinary wait is for.
    Empty when nothing is pending and nothing died.
    """
    return _first(map(problem, waits)) or _first(map(_ordinary, waits))


def look_on(fleet: FleetSnapshot) -> str:
    """The same to somebody who only looks at a snapshot with one run."""
    return run_holdup(
        [RunWait(fleet=fleet, run=run, purpose=each) for run in fleet.runs for each in Purpose]
    )


def fleet_holdup(fleet: FleetSnapshot) -> str:
    """What holds the fleet up: Redis, a run that cannot be read, workers that may be dead, a
    problem of any run, or what the first one with work waits for. Empty when nothing is pending.
    """
    if known := fleet.server.trouble or _first(fleet.unreadable):
        return known
    heard = [worker for worker in fleet.workers if worker.age_s < SILENT_S]
    silent = {worker.name: worker.age_s for worker in fleet.workers if worker.age_s >= SILENT_S}
    dead = nothing_heard({**fleet.lost, **silent}) if heard else ""
    # Also in a run without work a consumer or a producer may wait.
    runs = sorted(fleet.runs, key=lambda run: not run.has_work)
    seen = replace(fleet, workers=heard or fleet.workers, runs=runs)
    return " ".join(filter(None, (dead, look_on(seen))))


def other_runs(run: str, runs: Sequence[str]) -> str:
    """What to say of a run that does not exist: the one that was meant, and the latest of those
    that exist.
    """
    if not runs:
        return "there are no runs yet"
    close = difflib.get_close_matches(run, runs, 1)
    shown, more = runs[: -LISTED - 1 : -1], len(runs) - LISTED
    listed = f"runs there: {', '.join(shown)}" + (
        f" and {more} more (rollq stats lists them)" if more > 0 else ""
    )
    return (f"did you mean {close[0]!r}? " if close else "") + listed


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")


def _under_way(w: RunWait) -> str:
    return f"{w.standing.queued} queued, {w.standing.leased} being played"


def _unknown(w: RunWait) -> str:
    if w.run.known:
        return ""
    if w.name in w.fleet.names:  # a producer opened it and ended before its first group
        return "nothing was submitted to it yet. A consumer waits until jobs are"
    there = other_runs(w.name, w.fleet.names)
    return f"it does not exist yet; {there}. A consumer waits until jobs are submitted to it"


def _ordinary(w: RunWait) -> str:
    """What is being waited for, and what would make it shorter; empty when nothing is pending and
    nothing died.
    """
    s, dead, text = w.standing, w.run.counts["dead"], ""
    if s.open and (s.queued or s.leased):
        text = _played(w)
    elif s.held:
        own = f"{s.held} group{' is' if s.held == 1 else 's are'} held by a consumer"
        text = f"{own} that has not acknowledged them yet (batch.ack()), and none is being played"
    elif s.ready:
        text = (
            f"{s.ready} group{' is' if s.ready == 1 else 's are'} ready, and no consumer "
            "has taken them yet"
        )
    elif dead and not (s.open or w.elsewhere):
        are = f"{dead} job{' is' if dead == 1 else 's are'} dead"
        again = "`rollq jobs requeue` plays them again"
        text = f"nothing is pending, and {are}: see `rollq jobs list {w.name}`; {again}"
    return f"run {w.name}: {text}" if text else ""


def _played(w: RunWait) -> str:
    wrong, text = troubles(w), _under_way(w)
    waits = [
        wait for worker in w.able for wait in worker.waits if wait.job_id.startswith(f"{w.name}/")
    ]
    if waits:
        text += f": {_kinds(waits)}; {_longest(waits)}"
    more = (
        f"`rollq stats --late --run {w.name}` shows the oldest"
        if wrong
        else _failing(w) or _advice(w)
    )
    return f"{wrong} {text}. {more}".lstrip()


def _kinds(waits: Sequence[Wait]) -> str:
    """What the episodes wait for, the most frequent first."""
    counts = Counter(wait.what for wait in waits).most_common(3)
    return ", ".join(f"{count} wait{'s' * (count == 1)} for {what}" for what, count in counts)


def _longest(waits: Sequence[Wait]) -> str:
    longest = max(waits, key=lambda wait: wait.seconds)
    return f"{longest.job_id} has waited the longest, {longest.seconds:.0f} s for {longest.what}"


def _failing(w: RunWait) -> str:
    """Of jobs that fail again and again, one and why; empty when fewer than half of those that were
    looked at do.
    """
    if len(w.run.failing) * 2 < max(w.run.looked_at, 1):
        return ""
    job, why = next(iter(w.run.failing.items()))
    return (
        f"Of {w.run.looked_at} jobs that were looked at, {len(w.run.failing)} have failed "
        f"before, {job} by {why}."
        f" `rollq stats --late --run {w.name}` shows others"
    )


def _advice(w: RunWait) -> str:
    """What keeps the queued jobs waiting."""
    if not w.standing.queued:
        return f"`rollq stats --late --run {w.name}` shows each of them"
    if w.able and sum(worker.busy for worker in w.able) >= TAKEN * _slots(w.able):
        return f"All {_slots(w.able)} slots are taken: another worker, or a larger -c, would help"
    return f"`rollq stats --late --run {w.name}` shows the oldest"


def _slots(workers: Sequence[LiveWorker]) -> int:
    return sum(worker.slots for worker in workers)

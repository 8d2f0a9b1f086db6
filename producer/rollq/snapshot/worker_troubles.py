"""Workers that cannot play a run, are silent, or whose engines generate nothing, and the remedy.
Pure.
"""

from collections.abc import Iterable, Mapping, Sequence

from rollq.job import QUEUE
from rollq.ledger.constants import LEASE_S
from rollq.ledger.workers.live_workers import (
    AWAY,
    OUTDATED,
    PAUSED,
    READY,
    SILENT_S,
    STALLED,
    LiveWorker,
)
from rollq.snapshot.run_wait import RunWait

LATE_S = 10.0
"""Seconds after which a job's message is late. The reaper sends once a second."""
LISTED = 3
"""Number of workers or engines of a kind that are named."""
GO_ON = (
    "repeat the `rollq engines sync` that failed, or send the engine `POST /continue_generation`"
)
REMEDIES = {
    STALLED: (
        "has requests, and has shown no progress for seconds. It may be paused, as for "
        "new weights: if no update is"
        f" under way, {GO_ON}. Otherwise it computes a long step, as on a CPU, or it "
        "hangs and has to be started"
        " again: its log tells"
    ),
    AWAY: "is away: start it, or take it off the list of engines (`--engine`). "
    "Nothing is lost meanwhile",
    PAUSED: f"is paused, as for new weights. If no update is under way, {GO_ON}",
    OUTDATED: (
        "serves weights that are older than what a run has published, or not published, "
        "or others than those that"
        " jobs are pinned to (`weight_version`), or lacks a run's adapter, and is left "
        "alone by them: load the right"
        " ones (`rollq engines sync`), or, for a run with a bound on staleness, publish "
        "its own under the name that it"
        " has for them"
    ),
}
"""What to do about an engine that generates nothing, by its state."""


def unplayed(w: RunWait) -> str:
    """Why nothing of the run is being played; empty when it may be."""
    s = w.standing
    if not s.open or (w.wanted and w.wanted <= s.ready) or not (s.queued or s.leased):
        return ""
    jobs = f"{s.queued} job{' is' if s.queued == 1 else 's are'} queued and {s.leased} being played"
    back = f"; what dead workers played comes back within {LEASE_S:g} s" if s.leased else ""
    if not w.fleet.workers:
        return f"{jobs}, and no worker is alive: start `rollq worker{_queues(w)}`{back}"
    if not w.serving:
        theirs = ", ".join(sorted({queue for worker in w.fleet.workers for queue in worker.queues}))
        return (
            f"{jobs}, in queue {', '.join(w.run.queues)}, and the live workers serve "
            f"{theirs}: start `rollq"
            f" worker{_queues(w)}`"
        )
    able = w.able
    if not able:
        # One that left a job to others may play the rest of what it has.
        left = s.leased and any(
            worker.plays(w.run.tokenizer, w.run.template) for worker in w.serving
        )
        return "" if left else f"no live worker fits: {misfits(w)}. {jobs}"
    if silent := min(worker.age_s for worker in able) >= SILENT_S and max(
        worker.age_s for worker in able
    ):
        return (
            f"{jobs}, and nothing was heard of {_live(able)} for {silent:g} s: if it "
            "died, start `rollq"
            f" worker{_queues(w)}`{back}"
        )
    if text := _engines(able):
        return f"{text} {jobs}"
    if w.run.adapter and not s.published:
        return (
            f"{jobs}, and no version of their adapter {w.run.adapter} is published: "
            "`rollq engines sync --adapter"
            f" {w.run.adapter} --path DIR --version V --run {w.name} --step 0` loads "
            "one and publishes it"
            "; jobs that are pinned to a version need none"
        )
    if not s.leased and all(worker.busy >= worker.slots for worker in able):
        slots, wrong = sum(worker.slots for worker in able), troubles(w)
        more = "" if wrong else "; more workers would help"
        return f"{wrong} {jobs}: all {slots} slots of {_live(able)} play other runs{more}".lstrip()
    if w.run.overdue_s >= LATE_S:
        return (
            f"{jobs}; for {w.run.overdue_s:.0f} s no message of a queued job has reached "
            "the broker: check the workers'"
            " `--broker` with `rollq doctor`, and their logs"
        )
    if w.run.unclaimed_s >= LATE_S and not s.leased and not any(worker.busy for worker in able):
        return (
            f"{jobs}; a queued job has had its message at the broker for "
            f"{w.run.unclaimed_s:.0f} s, and {_live(able)}"
            " did not take it: check that the broker is up, and that workers and "
            "producers have the same `--broker`;"
            " the workers' logs say what they refuse"
        )
    return ""


def troubles(w: RunWait) -> str:
    """Sentences; empty when all workers and engines are well."""
    silent = {worker.name: worker.age_s for worker in w.able if worker.age_s >= SILENT_S}
    cannot = f"{misfits(w)}." if w.misfits else ""
    return " ".join(filter(None, (nothing_heard(silent), idle_engines(w.able), cannot)))


def nothing_heard(silent: Mapping[str, float]) -> str:
    """Of workers, and the seconds since they were last heard of."""
    if not silent:
        return ""
    return (
        f"Nothing was heard of {listed(silent)} for {max(silent.values()):.0f} s: look "
        "whether it is frozen; what a"
        f" dead worker played comes back within {LEASE_S:g} s, and `rollq worker` takes its place."
    )


def misfits(w: RunWait) -> str:
    """The workers that cannot play the run, by the reason, which ends with the remedy."""
    names: dict[str, list[str]] = {}
    for name, why in w.misfits.items():
        names.setdefault(why.rstrip("."), []).append(name)
    return "; ".join(f"{listed(those)} cannot play it: {why}" for why, those in names.items())


def idle_engines(workers: Sequence[LiveWorker]) -> str:
    """The engines that generate nothing, as any of these workers says."""
    states = {engine.url: READY for worker in workers for engine in worker.engines}
    states |= {
        engine.url: engine.state
        for worker in workers
        for engine in worker.engines
        if engine.state != READY
    }
    said = []
    for state, remedy in REMEDIES.items():
        if urls := [url for url, found in states.items() if found == state]:
            of = f" ({len(urls)} of {len(states)})" if len(states) > 1 else ""
            said.append(f"The engine at {listed(urls)}{of} {remedy}.")
    return " ".join(said)


def listed(names: Iterable[str]) -> str:
    """Names with commas; of many, the first ones."""
    names = sorted(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _engines(able: Sequence[LiveWorker]) -> str:
    """Why no engine of these workers generates; empty when one may."""
    if all(worker.engine == AWAY for worker in able):
        return (
            f"the engine of {_live(able)} that may play them is away: start it, or check "
            "`--engine`. Nothing is lost"
            " meanwhile."
        )
    stuck = all(
        worker.engines and all(one.state != READY for one in worker.engines) for worker in able
    )
    return idle_engines(able) if stuck else ""


def _queues(w: RunWait) -> str:
    return "" if set(w.run.queues) <= {QUEUE} else f" --queues {','.join(w.run.queues)}"


def _live(workers: Sequence[LiveWorker]) -> str:
    return "the only live worker" if len(workers) == 1 else f"all {len(workers)} live workers"

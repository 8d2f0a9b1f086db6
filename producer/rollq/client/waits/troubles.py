"""What is wrong with some workers or engines while others go on, and the remedy. Pure: it judges `Facts`."""

from collections.abc import Iterable, Mapping, Sequence

from rollq.client.waits.facts import Facts
from rollq.ledger.constants import LEASE_S
from rollq.ledger.workers.live_workers import AWAY, OUTDATED, PAUSED, READY, SILENT_S, STALLED, LiveWorker

LISTED = 3
"""Number of names of a kind that are said."""
GO_ON = "repeat the `rollq engines sync` that failed, or send the engine `POST /continue_generation`"
REMEDIES = {
    STALLED: (
        "has requests and generates nothing. It may be paused, as for new weights: if no update is under way,"
        f" {GO_ON}. Otherwise it hangs: look at its log, and start it again"
    ),
    AWAY: "is away: start it, or take it off the list of engines (`--engine`). Nothing is lost meanwhile",
    PAUSED: f"is paused, as for new weights. If no update is under way, {GO_ON}",
    OUTDATED: (
        "serves weights that are older than what a run has published, or not published, and is left alone until it"
        " serves newer ones: load the published ones (`rollq engines sync`), or publish its own under the name that"
        " it has for them"
    ),
}
"""What to do about an engine that generates nothing, by its state."""


def troubles(f: Facts) -> str:
    """Sentences; empty when all workers and engines are well."""
    silent = {worker.name: worker.age_s for worker in f.able if worker.age_s >= SILENT_S}
    cannot = f"{misfits(f)}." if f.misfits else ""
    return " ".join(filter(None, (nothing_heard(silent), idle_engines(f.able), cannot)))


def nothing_heard(silent: Mapping[str, float]) -> str:
    """Of workers, and the seconds since they were last heard of."""
    if not silent:
        return ""
    return (
        f"Nothing was heard of {listed(silent)} for {max(silent.values()):.0f} s: look whether it is frozen; what a"
        f" dead worker played comes back within {LEASE_S:g} s, and `rollq worker` takes its place."
    )


def misfits(f: Facts) -> str:
    """The workers that cannot play the run, by the reason, which ends with the remedy."""
    names: dict[str, list[str]] = {}
    for name, why in f.misfits.items():
        names.setdefault(why.rstrip("."), []).append(name)
    return "; ".join(f"{listed(those)} cannot play it: {why}" for why, those in names.items())


def idle_engines(workers: Sequence[LiveWorker]) -> str:
    """The engines that generate nothing, as any of these workers says."""
    states = {engine.url: READY for worker in workers for engine in worker.engines}
    states |= {engine.url: engine.state for worker in workers for engine in worker.engines if engine.state != READY}
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

"""Facts of a run's page about all its rollouts: the ledger's own totals, as `rollq stats` prints
them.

They count what is no longer in Redis, too, which no row can.
"""

from collections.abc import Mapping
from typing import Any

from rollq.snapshot.fleet import FleetSnapshot
from rollq.snapshot.holdups import run_holdup

GROUPS = (
    "groups_open",
    "groups_ready",
    "groups_held",
    "groups_acked",
    "groups_skipped",
    "groups_dropped",
)
STATES = ("queued", "leased", "done", "dead", "surplus")
GONE = {
    "delivered": "acknowledged (see your exported file)",
    "skipped": "skipped by the trainer",
    "surplus": "surplus",
    "discarded": "discarded",
}
"""Counts of rollouts that Redis keeps as counts alone, and why."""


def run_facts(fleet: FleetSnapshot) -> dict[str, Any]:
    """Counts, workers and what holds the run up, of a snapshot with this run alone."""
    (run,) = fleet.runs
    return {
        **totals(run.counts),
        "spent": run.seconds,
        "workers": len(fleet.workers),
        "slots": fleet.slots,
        "busy": fleet.in_flight,
        "policy": run.counts["policy"],
        "holdup": run_holdup(fleet).removeprefix(f"run {run.run}: "),
    }


def totals(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of `rollq_view.rows.summary` that the ledger has of all rollouts, and which of
    them are gone.
    """
    states = {state: stats[state] for state in STATES if stats[state]}
    return {
        "rollouts": stats["submitted"],
        "groups": sum(stats[name] for name in GROUPS),
        "states": states,
        "outcomes": stats["stops"]
        | {state: times for state, times in states.items() if state != "done"},
        "graded": sum(stats["stops"].values()),
        "reward_mean": stats["reward_mean"],
        "acked": stats["delivered"] + stats["skipped"],
        "gone": gone(stats),
    }


def gone(stats: Mapping[str, Any]) -> str:
    """Counts of rollouts that are no longer in Redis, with reasons; empty when all are there."""
    parts = [f"{stats[name]} {words}" for name, words in GONE.items() if stats[name]]
    return f"No longer in Redis: {', '.join(parts)}." if parts else ""

"""What a run's page says of all its rollouts: the ledger's own totals, as `rollq stats` prints them.

They count what is no longer in Redis, too, which no row can.
"""

from collections.abc import Mapping
from typing import Any

from rollq.client.waits import holdup
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import State
from rollq.ledger.workers.live_workers import live_workers
from rollq.ledger.workers.time_spent import time_spent

GROUPS = ("groups_open", "groups_ready", "groups_held", "groups_acked", "groups_skipped", "groups_dropped")
GONE = {
    "delivered": "acknowledged (see your exported file)",
    "skipped": "skipped by the trainer",
    "surplus": "surplus",
    "discarded": "discarded",
}
"""Counts of rollouts of which Redis keeps nothing but the counts, and why."""


def run_facts(reader: LedgerReader) -> dict[str, Any]:
    """Counts, workers and what holds the run up. Raises LedgerError."""
    stats, workers = reader.stats(), live_workers(reader.redis)
    return {
        **totals(stats),
        "spent": time_spent(reader.scripts),
        "workers": len(workers),
        "slots": sum(worker.slots for worker in workers),
        "busy": sum(worker.busy for worker in workers),
        "policy": stats["policy"],
        "holdup": holdup(reader, workers=workers).removeprefix(f"run {reader.run}: "),
    }


def totals(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of `rollq.viewer.rows.summary` that the ledger has of all rollouts, and which of them are gone."""
    states = {state.value: stats[state] for state in State if stats[state]}
    return {
        "rollouts": stats["submitted"],
        "groups": sum(stats[name] for name in GROUPS),
        "states": states,
        "outcomes": stats["stops"] | {state: times for state, times in states.items() if state != State.DONE},
        "graded": sum(stats["stops"].values()),
        "reward_mean": stats["reward_mean"],
        "acked": stats["delivered"] + stats["skipped"],
        "gone": gone(stats),
    }


def gone(stats: Mapping[str, Any]) -> str:
    """How many rollouts are no longer in Redis, and why; empty when all are there."""
    parts = [f"{stats[name]} {words}" for name, words in GONE.items() if stats[name]]
    return f"No longer in Redis: {', '.join(parts)}." if parts else ""

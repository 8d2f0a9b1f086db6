"""Prints what a simulation came to: tables in colour on a terminal, Markdown elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rollq_worker.simulation.fleet.bottlenecks import PLANNED, Limit
from rollq_worker.simulation.fleet.fleet import Fleet
from rollq_worker.simulation.fleet.outcome import Outcome

Rows = Sequence[Sequence[str]]


def show_table(title: str, head: Sequence[str], rows: Rows) -> None:
    """One table on standard output, the first column to the left and the others to the right."""
    if sys.stdout.isatty():
        try:
            _show_rich(title, head, rows)
            return
        except ImportError:
            pass
    print(f"\n{title}\n\n{markdown(head, rows)}" if title else markdown(head, rows))


def _show_rich(title: str, head: Sequence[str], rows: Rows) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number == 1 else "left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table, markup=False)


def markdown(head: Sequence[str], rows: Rows) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def outcome_rows(outcome: Outcome) -> list[list[str]]:
    """The figures of one run: name, value, meaning."""
    o = outcome
    old = ", ".join(f"{share:.0%} {age}" for age, share in o.staleness.items()) or "-"
    rates = f"{o.turns_a_s:.4g} turns/s, {o.tokens_a_s:.4g} sampled tokens/s"
    slots = f"of {o.slots} slots; {o.rollout_s:.3g} s each, {o.turns_a_rollout:.3g} turns"
    waits = f"p50; p99 {o.batch_wait_p99_s:.3g} s; trainer busy {o.trainer_busy:.0%}"
    worker = f"{o.worker_busy:.0%} of each process, {o.worker_cpu_a_turn_s * 1000:.2f} ms a turn"
    plan = f"processes at {PLANNED:.0%} at most; {o.workers_mb:.0f} MB each"
    redis = f"{o.redis_cpu_a_rollout_s * 1000:.2f} ms a rollout, {o.redis_calls_a_s:.3g} calls/s"
    clients = f"CPU of the process that submits; of the one that decodes {o.consumer_busy:.1%}"
    return [
        ["goodput", f"{o.rollouts_a_s:.3g} rollouts/s", rates],
        ["rollouts played", f"{o.playing:.0f}", slots],
        ["engine", f"{o.engine_turn_s * 1000:.0f} ms", "from a turn's request to its reply"],
        ["engines idle", f"{o.engine_idle:.1%}", f"no request, or new weights ({o.updating:.1%})"],
        ["batch wait", f"{o.batch_wait_p50_s:.3g} s", waits],
        ["staleness", old, "share of groups by training steps from their first claim to their use"],
        ["worker CPU", f"{o.worker_cores:.2f} cores", worker],
        ["worker cores to plan", f"{o.worker_cores / PLANNED:.1f}", plan],
        ["Redis CPU", f"{o.redis_busy:.1%}", redis],
        ["Redis memory", f"{o.redis_mb:.3g} MB", f"at most; {o.redis_mb_a_s:.3g} MB/s written"],
        ["producer, consumer", f"{o.producer_busy:.1%}", clients],
    ]


def limit_row(limit: Limit) -> list[str]:
    load = f"{limit.load:.0%}"
    if limit.load > 1:
        load += ", too much"
    return [f"{limit.rollouts:,}", f"{limit.name}: {load}", limit.remedy]


def show_outcome(fleet: Fleet, outcome: Outcome, now: Limit, later: Sequence[Limit]) -> None:
    """All tables of one run."""
    show_table(f"{fleet.engines.count} engines, {fleet.workers.processes} worker processes", ["", "value", ""],
               outcome_rows(outcome))  # fmt: skip
    rows = [[f"{now.rollouts:,} (played)", f"{now.name}: {now.load:.0%}", now.remedy], *map(limit_row, later)]
    show_table("The first limit by rollouts at a time", ["rollouts", "limit", "remedy"], rows)


VARY_HEAD = [
    "rollouts/s",
    "sampled tokens/s",
    "engines idle",
    "batch wait p99, s",
    "worker cores",
    "Redis CPU",
    "limit",
]


def vary_row(outcome: Outcome, limit: Limit) -> list[str]:
    """One row of a table that compares fleets."""
    return [
        f"{outcome.rollouts_a_s:.3g}",
        f"{outcome.tokens_a_s:.4g}",
        f"{outcome.engine_idle:.0%}",
        f"{outcome.batch_wait_p99_s:.3g}",
        f"{outcome.worker_cores:.2f}",
        f"{outcome.redis_busy:.1%}",
        limit.name,
    ]

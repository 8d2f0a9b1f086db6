"""`rollq simulate` against real runs: 1, 2 and 4 worker processes, busy and waiting, on the cores of this machine.

The costs are measured first, in the same run. Then each fleet is played for real (Redis, replay engine and workers are
processes on the same cores) and simulated with the episodes that were played, beside programs that want as much CPU as
others used meanwhile. A prediction may be 15 % off, in the median of the rounds.

    python benchmarks/bench_simulation.py [--env shop] [--processes 1 2 4] [--rounds 3] [--costs FILE.toml] [--json]
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from cpu import require_linux
from tables import table

from rollq_worker.commands.simulate.measuring import fleet_like, measure
from rollq_worker.commands.simulate.site import SIZE, TASKS, Site, Steady
from rollq_worker.simulation.costs.table import Costs, as_toml, read_costs
from rollq_worker.simulation.fleet.outcome import Outcome
from rollq_worker.simulation.fleet.run import FleetRun

CONCURRENCY = 16
LATENCIES = (0.0, 0.5)
"""Mean seconds of a generation. Without latency the cores are the limit, else the slots."""
BEFORE = 1
MEASURED = {0.0: 8}
"""Rollouts of each slot before the measurement; within it, by latency (4)."""
MOST_OFF = 0.15
FIGURES = ("rollouts a second", "worker ms a rollout", "Redis ms a rollout", "scripts a rollout")

Figures = dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--env", default="shop", help="environment (%(default)s)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument("--latency", type=float, nargs="+", default=list(LATENCIES), metavar="S")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="real runs of each fleet (%(default)s)")
    parser.add_argument("--costs", type=Path, metavar="FILE.toml", help="costs that were measured before")
    parser.add_argument("--save", type=Path, metavar="FILE.toml", help="where the costs are written")
    add_tokenizer(parser)
    args = parser.parse_args(argv)
    require_linux()
    costs = (
        read_costs(args.costs)
        if args.costs
        else measure(args.env, args.tokenizer, lambda text: print(text, flush=True))
    )
    if args.save:
        args.save.write_text(as_toml(costs))
    fleets = [(latency, processes) for latency in args.latency for processes in args.processes]
    rounds = [[compare(args.env, args.tokenizer, costs, *fleet) for fleet in fleets] for _ in range(args.rounds)]
    results = [summary(*fleet, [one[n] for one in rounds]) for n, fleet in enumerate(fleets)]
    report(results)
    checks = [
        Check(f"{title(result)}: {name}, off", abs(result["off"][name]), MOST_OFF)
        for result in results
        for name in FIGURES
    ]
    return conclude({"fleets": results, "costs": asdict(costs)}, checks, args.json)


def compare(
    env: str, tokenizer: str | None, costs: Costs, latency: float, processes: int
) -> tuple[Figures, Figures, float]:
    """One real run, the simulation of it, and the cores that other programs used."""
    with Site(env, latency, tokenizer, lambda _: None) as site:
        site.add_workers(processes, CONCURRENCY)
        site.play(max(TASKS, processes * CONCURRENCY // SIZE))  # imports, data, connections
        real = site.play_steadily(processes * CONCURRENCY, BEFORE, MEASURED.get(latency, 4))
    found = FleetRun(fleet_like(costs, latency, processes, CONCURRENCY, real), costs).play()
    played, simulated = of_run(real), of_simulation(found)
    print(f"{processes} processes, {latency:g} s a turn, real and simulated; {real.others:.2f} cores for others:")
    print("; ".join(f"{name} {played[name]:.3g}, {simulated[name]:.3g}" for name in FIGURES), flush=True)
    return played, simulated, real.others


def of_run(real: Steady) -> Figures:
    return dict(zip(FIGURES, (real.rollouts_a_s, real.worker_s * 1000, real.redis_s * 1000, real.scripts), strict=True))


def of_simulation(found: Outcome) -> Figures:
    worker_ms = found.worker_cores / found.rollouts_a_s * 1000
    redis_ms = found.redis_cpu_a_rollout_s * 1000
    return dict(zip(FIGURES, (found.rollouts_a_s, worker_ms, redis_ms, found.scripts_a_rollout), strict=True))


def summary(latency: float, processes: int, runs: Sequence[tuple[Figures, Figures, float]]) -> dict[str, Any]:
    """Medians over the rounds, and how far off the simulation was: each round is compared with its own simulation."""
    real, simulated = (
        {name: statistics.median(run[side][name] for run in runs) for name in FIGURES} for side in (0, 1)
    )
    off = {name: statistics.median(run[1][name] / run[0][name] for run in runs) - 1 for name in FIGURES}
    others = statistics.median(run[2] for run in runs)
    fleet = {"latency_s": latency, "processes": processes, "others": others}
    return {**fleet, "real": real, "simulated": simulated, "off": off}


def title(result: dict[str, Any]) -> str:
    return f"{result['processes']} processes, {result['latency_s']:g} s a turn"


def report(results: Sequence[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        first = f"{title(result)}; others {result['others']:.2f} cores"
        for name in FIGURES:
            rows.append(
                [
                    first,
                    name,
                    f"{result['real'][name]:.3g}",
                    f"{result['simulated'][name]:.3g}",
                    f"{result['off'][name]:+.0%}",
                ]
            )
            first = ""
    print(table(["fleet", "figure", "real", "simulated", "off"], rows))


if __name__ == "__main__":
    sys.exit(main())

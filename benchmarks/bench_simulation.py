"""`rollq simulate` against real runs: 1, 2 and 4 worker processes, busy and waiting, on the cores of this machine.

The costs are measured first, in the same run. Then each fleet is played for real (Redis, replay engine and workers are
processes on the same cores) and simulated with the episodes that were played. Exit code 1 when a prediction is more
than 15 % off, in the median of the rounds. Rates are only judged while other programs leave the cores alone.

    python benchmarks/bench_simulation.py [--env shop] [--processes 1 2 4] [--rounds 3] [--costs FILE.toml] [--json]
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu import TICK_S, require_linux
from tables import table

from rollq_worker.commands.simulate.measuring import SIZE, Site, Steady, measure
from rollq_worker.simulation.amounts import Amount
from rollq_worker.simulation.costs.table import Costs, as_toml, read_costs
from rollq_worker.simulation.fleet.fleet import Engines, Fleet, Jobs, Trainer, Workers
from rollq_worker.simulation.fleet.outcome import Outcome
from rollq_worker.simulation.fleet.run import FleetRun

CORES = len(os.sched_getaffinity(0))
CONCURRENCY = 16
LATENCIES = (0.0, 0.5)
"""Mean seconds of a generation. Without latency the cores are the limit, else the slots."""
P99_OF_MEAN = 3.37
"""The 99th percentile of the replay engine's latency, over its mean."""
RATE = "rollouts a second"
WAVES = 6
"""Rollouts of each slot."""
MOST_OFF = 0.15
MOST_FOREIGN = 0.05
"""Share of the cores that other programs may use while rates are judged."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="shop", help="environment (%(default)s)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument("--latency", type=float, nargs="+", default=list(LATENCIES), metavar="S")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="real runs of each fleet (%(default)s)")
    parser.add_argument("--costs", type=Path, metavar="FILE.toml", help="costs that were measured before")
    parser.add_argument("--save", type=Path, metavar="FILE.toml", help="where the costs are written")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args(argv)
    require_linux()
    costs = read_costs(args.costs) if args.costs else measure(args.env, None, lambda text: print(text, flush=True))
    if args.save:
        args.save.write_text(as_toml(costs))
    fleets = [(latency, processes) for latency in args.latency for processes in args.processes]
    rounds = [[compare(args.env, costs, *fleet) for fleet in fleets] for _ in range(args.rounds)]
    results = [summary(*fleet, [one[n] for one in rounds]) for n, fleet in enumerate(fleets)]
    report(results)
    if args.json:
        print(json.dumps(results))
    return 0 if all(result["ok"] for result in results) else 1


def compare(env: str, costs: Costs, latency: float, processes: int) -> dict[str, Any]:
    """One real run, and the simulation of it."""
    slots = processes * CONCURRENCY
    with Site(env, latency, None, lambda _: None) as site:
        site.add_workers(processes, CONCURRENCY)
        site.play(slots * 2 // SIZE)  # imports, data, connections
        began, machine, own = time.monotonic(), busy_s(), site.own_cpu_s()
        real = site.play_steadily(slots * WAVES // SIZE, slots)
        others = (busy_s() - machine) - (site.own_cpu_s() - own)
        foreign = max(0.0, others) / (time.monotonic() - began) / CORES
    found = {"real": figures(real), "simulated": simulated(costs, latency, processes, real), "foreign": foreign}
    print(f"{processes} processes, {latency:g} s a turn: {real.rollouts_a_s:.3g} rollouts a second", flush=True)
    return found


def figures(real: Steady) -> dict[str, float]:
    return {
        RATE: real.rollouts_a_s,
        "worker ms a rollout": real.worker_s * 1000,
        "Redis ms a rollout": real.redis_s * 1000,
        "scripts a rollout": real.scripts,
    }


def simulated(costs: Costs, latency: float, processes: int, real: Steady) -> dict[str, float]:
    fleet = Fleet(
        engines=Engines(turn_s=Amount(latency, latency * P99_OF_MEAN), cpu_s=costs.clients.replay_engine_turn_s),
        workers=Workers(processes=processes, concurrency=CONCURRENCY, cores=CORES, shared=True),
        jobs=Jobs(group_size=SIZE, episodes=tuple(real.episodes)),
        trainer=Trainer(ahead=processes * CONCURRENCY * WAVES // SIZE),
    )
    found: Outcome = FleetRun(fleet, costs).play()
    return {
        RATE: found.rollouts_a_s,
        "worker ms a rollout": found.worker_cores / found.rollouts_a_s * 1000,
        "Redis ms a rollout": found.redis_cpu_a_rollout_s * 1000,
        "scripts a rollout": found.scripts_a_rollout,
    }


def busy_s() -> float:
    """CPU seconds of all programs on this machine so far."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + irq + soft) * TICK_S


def summary(latency: float, processes: int, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, and how far off the simulation was."""
    rows, foreign = {}, statistics.median(run["foreign"] for run in runs)
    for name in runs[0]["real"]:
        real, simulated = (statistics.median(run[side][name] for run in runs) for side in ("real", "simulated"))
        rows[name] = {"real": real, "simulated": simulated, "off": simulated / real - 1}
    judged = [name for name in rows if foreign <= MOST_FOREIGN or name != RATE]
    ok = all(abs(rows[name]["off"]) <= MOST_OFF for name in judged)
    return {"latency_s": latency, "processes": processes, "foreign": foreign, "figures": rows, "ok": ok}


def report(results: Sequence[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        title = f"{result['processes']} processes, {result['latency_s']:g} s a turn"
        for name, one in result["figures"].items():
            judged = "" if result["foreign"] <= MOST_FOREIGN or name != RATE else " (not judged)"
            rows.append([title, name, f"{one['real']:.3g}", f"{one['simulated']:.3g}", f"{one['off']:+.0%}{judged}"])
            title = ""
    print(table(["fleet", "figure", "real", "simulated", "off"], rows))
    for result in results:
        if result["foreign"] > MOST_FOREIGN:
            print(
                f"{result['processes']} processes, {result['latency_s']:g} s a turn: other programs used"
                f" {result['foreign']:.0%} of the cores, so the rate is not judged"
            )
    print("ok" if all(result["ok"] for result in results) else f"MORE THAN {MOST_OFF:.0%} OFF")


if __name__ == "__main__":
    sys.exit(main())

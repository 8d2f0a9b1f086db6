"""`rollq simulate` against real runs: 1, 2 and 4 worker processes, busy and waiting, on two cores of this machine.

In each round the costs are measured as `rollq simulate --measure` does, and each fleet is played for real: Redis,
replay engine and workers are processes on the same cores. Then each run is simulated with the costs of all rounds and
the episodes that were played, beside programs that want as much CPU as others used meanwhile. A prediction may be 15 %
off, in the median of the rounds.

    python benchmarks/bench_simulation.py [--env shop] [--processes 1 2 4] [--rounds 5] [--json]
"""

import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from cpu import require_linux
from tables import table

from rollq_worker.commands.simulate.fitting import Real, fleet_like
from rollq_worker.commands.simulate.measuring import WAITING_S, Measurement, Round
from rollq_worker.commands.simulate.site import SIZE, Site, Steady, few_cores
from rollq_worker.simulation.costs.table import Costs
from rollq_worker.simulation.fleet.outcome import Outcome
from rollq_worker.simulation.fleet.run import FleetRun

CONCURRENCY = 16
LATENCIES = (0.0, WAITING_S)
"""Mean seconds of a generation. Without latency the cores are the limit, else the slots."""
BEFORE = 1
MEASURED = 8
"""Rollouts of each slot before the measurement, and within it."""
WAITED = 96
"""Rollouts that a fleet with latency plays within it, so that rates do not depend on a few."""
LEAST_ROLLOUTS = 800
MOST_OFF = 0.15
FIGURES = ("rollouts a second", "worker ms a rollout", "Redis ms a rollout", "scripts a rollout")

Figures = dict[str, float]
Fleet = tuple[float, int]
"""Latency and number of processes."""
Compared = tuple[Figures, Figures, float]
"""What was played, what was simulated, and the cores that other programs used."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--env", default="shop", help="environment (%(default)s)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="times each fleet is played (%(default)s)")
    add_tokenizer(parser)
    args = parser.parse_args(argv)
    require_linux()
    fleets = [(latency, processes) for latency in LATENCIES for processes in args.processes]
    with few_cores(), Compare(args.env, args.tokenizer, fleets) as compare:
        for number in range(1, args.rounds + 1):
            print(f"round {number} of {args.rounds} ...", flush=True)
            compare.round()
        results = compare.results()
    report(results)
    checks = [
        Check(f"{title(result)}: {name}, off", abs(result["off"][name]), MOST_OFF)
        for result in results
        for name in FIGURES
    ]
    return conclude({"fleets": results}, checks, args.json)


class Compare:
    """The processes that measure costs, and those of each fleet. Leaving the context ends them."""

    def __init__(self, env: str, tokenizer: str | None, fleets: Sequence[Fleet]) -> None:
        self._env, self._tokenizer, self._fleets = env, tokenizer, fleets
        self._measurement = Measurement(env, tokenizer, lambda text: print(text, flush=True))
        self._stack = ExitStack()
        self._sites: dict[Fleet, Site] = {}
        self._measured: list[Round] = []
        self._played: dict[Fleet, list[Steady]] = {}

    def __enter__(self) -> "Compare":
        measurement = self._stack.enter_context(self._measurement)
        for latency, processes in self._fleets:
            engine = measurement.waiting if latency else measurement.busy
            site = self._stack.enter_context(Site(self._env, latency, self._tokenizer, engine))
            site.add_workers(processes, CONCURRENCY)
            self._sites[latency, processes] = site
        for (_, processes), site in self._sites.items():
            site.await_workers()
            site.play(2 * processes * CONCURRENCY // SIZE)  # imports, data, connections
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def round(self) -> None:
        """Measure the costs and play each fleet once, those that are alike one after the other."""
        self._play(0.0)
        self._measured.append(self._measurement.round())
        self._play(WAITING_S)

    def _play(self, latency_s: float) -> None:
        for (latency, processes), site in self._sites.items():
            if latency == latency_s:
                slots = processes * CONCURRENCY
                run = site.play_steadily(slots, BEFORE, ceil(WAITED / slots) if latency else MEASURED)
                self._played.setdefault((latency, processes), []).append(run)

    def results(self) -> list[dict[str, Any]]:
        """Each fleet beside its simulation."""
        costs, found = self._measurement.costs(self._measured), []
        for (latency, processes), runs in self._played.items():
            real = Real(processes, CONCURRENCY, latency, runs)
            found.append(summary(latency, processes, [compared(costs, real, run) for run in runs]))
        return found


def compared(costs: Costs, real: Real, run: Steady) -> Compared:
    """A run beside its simulation, with another seed than those that the costs come from."""
    found = FleetRun(fleet_like(real, run), costs, seed=1).play(least=LEAST_ROLLOUTS)
    return of_run(run), of_simulation(found), run.others


def of_run(real: Steady) -> Figures:
    return dict(zip(FIGURES, (real.rollouts_a_s, real.worker_s * 1000, real.redis_s * 1000, real.scripts), strict=True))


def of_simulation(found: Outcome) -> Figures:
    worker_ms = found.worker_cores / found.rollouts_a_s * 1000
    redis_ms = found.redis_cpu_a_rollout_s * 1000
    return dict(zip(FIGURES, (found.rollouts_a_s, worker_ms, redis_ms, found.scripts_a_rollout), strict=True))


def summary(latency: float, processes: int, runs: Sequence[Compared]) -> dict[str, Any]:
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

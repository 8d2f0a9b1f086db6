"""What do 1,000 episodes at once cost in one worker process, and in four under one parent?

The same episodes on the same kind of engine, with turns of 2 s and of 10 s (lognormal), one after
the other. CPU is that of all the worker's processes. Memory is what they take together, with shared
pages once (PSS). Figures are those of four processes over those of one.

    python benchmarks/bench_processes.py [--env tau2_2025:airline] [--tokenizer DIR] [-c 1000]
        [--processes 4] [--latency S ...] [--json]
"""

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from cpu import cpu_seconds, family, proportional_mb, require_linux
from processes import Processes
from runs import SPLITS, indices, require_perfect, rollouts, submit, turns_of, wait_until_done
from tables import table

from rollq.client.client import Client

LATENCIES_S = (2.0, 10.0)
SIZE = 2
WARM_UP = 128
"""Groups that are played before: each process loads the environment, and what it computes once for
each task.
"""
LOOK_EVERY_S = 1.0
"""Seconds between two looks at the memory."""
MOST_CPU, MOST_MEMORY = 1.25, 2.5
"""Several processes may cost so many times the CPU and the memory of one."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    parser.add_argument(
        "--env", choices=SPLITS, default="tau2_2025:airline", help="environment (%(default)s)"
    )
    parser.add_argument(
        "-c", "--concurrency", type=int, default=1000, help="episodes at once (%(default)s)"
    )
    parser.add_argument("--processes", type=int, default=4, help="processes (%(default)s)")
    parser.add_argument("--latency", type=float, nargs="+", default=LATENCIES_S, metavar="S")
    args = parser.parse_args(argv)
    require_linux()
    rows = [
        play(args, processes, latency_s)
        for latency_s in args.latency
        for processes in (1, args.processes)
    ]
    print(f"{args.concurrency} episodes of {args.env} at once; all rewards 1.0\n")
    print(table(list(rows[0]), [[f"{value:.4g}" for value in row.values()] for row in rows]))
    return conclude({"rows": rows}, checks(rows, args.processes), args.json)


def play(args: argparse.Namespace, count: int, latency_s: float) -> dict[str, float]:
    with Processes() as processes:
        engine_url, redis_url = (
            processes.engine(args.env, args.tokenizer, latency_s),
            processes.redis(),
        )
        slots = args.concurrency // count
        child = processes.worker(redis_url, engine_url, slots, args.tokenizer, processes=count)
        at_rest = proportional_mb(family(child.pid))
        most = Most(child.pid)
        for run, groups in (("warm-up", WARM_UP), ("crowd", slots * count // SIZE)):
            with Client(redis_url, run=run) as client:
                spent = cpu_seconds(child.pid)
                began = time.monotonic()
                submit(client, args.env, indices(args.env, groups), SIZE)
                wait_until_done(client, groups * SIZE, look_every_s=0.5)
                spent, wall_s = cpu_seconds(child.pid) - spent, time.monotonic() - began
                played = rollouts(client)
        peak = most.stop()
    require_perfect(f"{count} processes", played)
    return {
        "s a turn": latency_s,
        "processes": count,
        "turns": turns_of(played),
        "CPU ms a turn": spent / turns_of(played) * 1000,
        "MB at rest": at_rest,
        "MB at most": peak,
        "wall s": wall_s,
    }


class Most(threading.Thread):
    """Looks at the memory of a process and its children until `stop`."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._peak = 0.0
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._peak = max(self._peak, proportional_mb(family(self._pid)))

    def stop(self) -> float:
        self._ended.set()
        self.join()
        return self._peak


def checks(rows: Sequence[dict[str, Any]], count: int) -> list[Check]:
    found = []
    for one, several in zip(rows[::2], rows[1::2], strict=True):
        what = f"{count} processes over one, {one['s a turn']:g} s a turn"
        for name, most in (("CPU ms a turn", MOST_CPU), ("MB at most", MOST_MEMORY)):
            found.append(Check(f"{what}: {name}", several[name] / one[name], most))
    return found


if __name__ == "__main__":
    sys.exit(main())

"""How soon is rollq there: a worker's first claim, `rollq --help`, `from rollq import Client`?

Fresh interpreters, each the median of several. For the worker a job waits in Redis and an engine is
up; measured is from the process's start to the claim, and compared with the worker's imports. The
others are compared with the bare interpreter (`python -c pass`). Exit code 1 when a target is
missed.

    python benchmarks/bench_start.py [--tokenizer DIR] [--repeats 5] [--json]
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from cpu import cpu_seconds, require_linux
from processes import START_S, Processes
from runs import indices, submit
from tables import table

from rollq.client.client import Client

ENV = "tau2_2025:retail"
BARE, IMPORTS = "python -c pass", "a worker's imports"
COMMANDS = {
    BARE: ["-c", "pass"],
    IMPORTS: ["-c", "from rollq_worker.process import main"],
    "from rollq import Client": ["-c", "from rollq import Client"],
    "rollq --help": ["-m", "rollq", "--help"],
}
CLAIM = "a worker's first claim"
TARGETS = {
    "from rollq import Client": (BARE, 7.0),
    "rollq --help": (BARE, 12.0),
    CLAIM: (IMPORTS, 6.0),
}
"""What each start is compared with, and how many times its CPU it may take."""

Took = dict[str, float]
"""Seconds by name: cpu_s and wall_s."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    parser.add_argument("--repeats", type=int, default=5, help="starts of each (%(default)s)")
    parser.add_argument("--claims", type=int, metavar="N", help="starts of a worker (as --repeats)")
    args = parser.parse_args(argv)
    require_linux()
    result: dict[str, Any] = {}
    with Processes() as processes:
        once = {name: _command(processes, words) for name, words in COMMANDS.items()}
        claims = args.repeats if args.claims is None else args.claims
        if claims:
            engine_url = processes.engine(ENV, args.tokenizer)
            redis_url = processes.redis()
            once[CLAIM] = lambda number: first_claim(
                processes, redis_url, engine_url, args.tokenizer, number
            )
        each: dict[str, list[Took]] = {name: [] for name in once}
        for number in range(args.repeats):
            for name, start in once.items():
                if name != CLAIM or number < claims:
                    each[name].append(start(number))
    for name, took in each.items():
        result[name] = {
            key: statistics.median(one[key] for one in took) for key in ("cpu_s", "wall_s")
        }
    rows = [
        [name, f"{took['wall_s']:.3f}", f"{took['cpu_s']:.3f}"] for name, took in result.items()
    ]
    print(table(["start", "wall s", "CPU s"], rows))
    checks = [
        Check(f"CPU of {name}, over {other}", result[name]["cpu_s"] / result[other]["cpu_s"], most)
        for name, (other, most) in TARGETS.items()
        if name in result
    ]
    return conclude(result, checks, args.json)


def _command(processes: Processes, words: Sequence[str]) -> Callable[[int], Took]:
    def start(_: int) -> Took:
        used = _children_cpu()
        began = time.perf_counter()
        environment = processes.environment()
        subprocess.run(
            [sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=True
        )
        return {"cpu_s": _children_cpu() - used, "wall_s": time.perf_counter() - began}

    return start


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_claim(
    processes: Processes, redis_url: str, engine_url: str, tokenizer: str | None, number: int
) -> Took:
    """Starts a worker where a job waits."""
    with Client(redis_url, run=f"start-{number}") as client:
        submit(client, ENV, indices(ENV, 1), 1)
        flags = ["--redis", redis_url, "--broker", redis_url, "--engine", engine_url]
        more = ["--tokenizer", tokenizer] if tokenizer else []
        began = time.perf_counter()
        child = processes.start("worker", ["-m", "rollq", "worker", *flags, *more])
        while client.stats()["queued"]:
            if time.perf_counter() - began > START_S or child.exit_code is not None:
                sys.exit(child.how_it_ended())
            time.sleep(0.01)
        took = {"wall_s": time.perf_counter() - began, "cpu_s": cpu_seconds(child.pid)}
        while not client.stats()["done"]:
            time.sleep(0.1)
        child.stop()
    return took


if __name__ == "__main__":
    sys.exit(main())

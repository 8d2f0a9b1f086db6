"""Is a ratio worse than the one in results/check.json by more than noise? CI runs this; it takes
under two minutes.

Small versions of some benchmarks. What is compared are ratios of two things of the same run, and
sizes, so that another machine gives about the same. A figure that looks too large is measured
again, and the smaller value counts: noise of other programs only ever adds. Each figure has the
margin that is told in benchmarks/README.md.

    python benchmarks/check.py [--update]
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from run import RESULTS, measure
from tables import table

FILE = RESULTS / "check.json"
TRIES = 3
UPDATES = 3
"""Runs; --update takes their median."""

Figures = dict[str, float]


def turn(found: dict[str, Any]) -> Figures:
    at_rest = found["at_rest_mb"]
    alone = found["loop"]["ms_a_turn"]
    return {
        "a turn of the worker, over the bare loop's": found["of_bare"],
        "a turn of the worker's loop alone, over the bare loop's": alone
        / found["bare"]["ms_a_turn"],
        "MB of a worker at rest": at_rest,
    }


def ratios(found: dict[str, Any]) -> Figures:
    return {check["what"]: check["value"] for check in found["checks"] if check["ratio"]}


def start(found: dict[str, Any]) -> Figures:
    bare = found["python -c pass"]["cpu_s"]
    return {
        f"CPU of {name}, over a bare interpreter's": found[name]["cpu_s"] / bare
        for name in ("rollq --help", "from rollq import Client")
    }


PARTS: dict[str, tuple[Sequence[str], Callable[[dict[str, Any]], Figures], float]] = {
    "turn": (
        ("bench_turn", "--tasks", "12", "--repeats", "3", "-c", "16", "--naive", "0"),
        turn,
        1.25,
    ),
    "tokens": (("bench_tokens",), ratios, 1.25),
    "batch": (("bench_batch",), ratios, 1.6),
    "start": (("bench_start", "--claims", "0", "--repeats", "9"), start, 1.5),
}
"""Words, the figures of the result, and how many times the committed value a figure may be."""
EXACT = {"bytes of a trajectory in a group, over those of lists": 1.05}
"""Words and limits of the figures that no noise touches."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--update", action="store_true", help="write results/check.json from this machine"
    )
    args = parser.parse_args(argv)
    if args.update:
        FILE.write_text(json.dumps(update(), indent=1) + "\n")
        return 0
    if not FILE.exists():
        sys.exit(f"{FILE} is missing: make bench-check ARGS=--update writes it")
    committed: Figures = json.loads(FILE.read_text())
    rows = []
    began = time.monotonic()
    for part, (_, _, margin) in PARTS.items():
        best = figures(part)
        if unknown := best.keys() - committed.keys():
            sys.exit(
                f"{FILE} lacks {', '.join(sorted(unknown))}: make bench-check "
                "ARGS=--update writes it again"
            )
        for _ in range(TRIES - 1):
            if not worse(best, committed, margin):
                break
            again = figures(part)
            best = {name: min(value, again[name]) for name, value in best.items()}
        for name, value in best.items():
            most = limit(name, committed, margin)
            rows.append(
                [
                    name,
                    f"{value:.3g}",
                    f"{committed[name]:.3g}",
                    f"{most:.3g}",
                    _verdict(value, most),
                ]
            )
    print("\n" + table(["figure", "now", "committed", "at most", ""], rows))
    print(f"\n{time.monotonic() - began:.0f} s")
    return int(any(row[-1] != "ok" for row in rows))


def worse(found: Figures, committed: Figures, margin: float) -> list[str]:
    return [name for name, value in found.items() if value > limit(name, committed, margin)]


def limit(name: str, committed: Figures, margin: float) -> float:
    return committed[name] * EXACT.get(name, margin)


def _verdict(value: float, most: float) -> str:
    return "ok" if value <= most else "WORSE"


def figures(part: str) -> Figures:
    """Measures one part. Exits when the benchmark itself broke."""
    words, read, _ = PARTS[part]
    print(f"\n== {' '.join(words)}", flush=True)
    code, found = measure(words, None)
    if not found:
        sys.exit(f"{words[0]} ended with exit code {code} and without a result")
    return read(found)


def update() -> Figures:
    runs = [
        {name: value for part in PARTS for name, value in figures(part).items()}
        for _ in range(UPDATES)
    ]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


if __name__ == "__main__":
    sys.exit(main())

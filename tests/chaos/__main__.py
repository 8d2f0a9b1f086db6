"""`python -m tests.chaos`: runs the fault matrix and prints its table. Exit code 1 when a row does
not add up.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.chaos import result as results
from tests.chaos.result import Result
from tests.chaos.rows import load
from tests.chaos.runner import run_by_name


def main() -> int:
    rows = load()
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Runs the fault matrix."
    )
    parser.add_argument(
        "--row", action="append", choices=list(rows), metavar="NAME", help=", ".join(rows)
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="each row with seeds 0 to N-1 (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument(
        "--at-once", type=int, default=3, metavar="N", help="rows at a time (%(default)s)"
    )
    storm = "instead of rows, all faults at random for SECONDS (180)"
    parser.add_argument(
        "--storm", type=float, nargs="?", const=180.0, default=0.0, metavar="SECONDS", help=storm
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row, and no table")
    args = parser.parse_args()
    # The longest rows first: they mostly wait, and the others run beside them.
    names = (
        ["storm"]
        if args.storm
        else sorted(args.row or rows, key=lambda name: -rows[name].deadline_s)
    )
    folder = Path(tempfile.mkdtemp(prefix="rollq-chaos-"))
    done: list[Result] = []
    start = time.monotonic()
    with ProcessPoolExecutor(args.at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = {}
        for seed in range(args.seed, args.seed + args.seeds):
            for name in names:
                place = folder / f"{name}-{seed}"
                tasks[pool.submit(run_by_name, name, seed, place, args.storm)] = place
        for future in as_completed(tasks):
            result = future.result()
            done.append(result)
            if args.json:
                print(json.dumps(asdict(result)), flush=True)
            else:
                verdict = f"skipped: {result.skipped}" if result.skipped else "ok"
                verdict = "WRONG: " + "; ".join(result.wrong) if result.wrong else verdict
                print(
                    f"{result.row}, seed {result.seed}: {result.wall_s:.0f} s, {verdict}",
                    flush=True,
                )
            if not result.wrong:
                shutil.rmtree(tasks[future])
    return report(done, folder, time.monotonic() - start, quiet=args.json)


def report(done: list[Result], folder: Path, wall_s: float, *, quiet: bool) -> int:
    """Print the table, and where the logs of failed rows are. Returns the exit code."""
    order = list(load())
    done.sort(
        key=lambda result: (order.index(result.row) if result.row in order else -1, result.seed)
    )
    if not quiet:
        for result in done:
            if result.row == "storm":
                print(f"\nseed {result.seed}:\n{results.sums(result)}")
        print(f"\n{results.table(done)}\n\n{len(done)} rows in {wall_s:.0f} s")
    bad = [result for result in done if result.wrong]
    for result in bad:
        print(f"{result.row}, seed {result.seed}: {'; '.join(result.wrong)}", file=sys.stderr)
        print(f"  logs: {folder / f'{result.row}-{result.seed}'}", file=sys.stderr)
    if not bad:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

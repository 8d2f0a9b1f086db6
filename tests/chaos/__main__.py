"""`python -m tests.chaos`: runs the fault matrix, prints its table, exits with 1 when a row does not add up."""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.chaos import account as accounts
from tests.chaos.account import Account
from tests.chaos.rows import load
from tests.chaos.trial import run


def main() -> int:
    rows = load()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Runs the fault matrix.")
    parser.add_argument("--row", action="append", choices=list(rows), metavar="NAME", help=", ".join(rows))
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="each row with seeds 0 to N-1 (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--at-once", type=int, default=3, metavar="N", help="rows at a time (%(default)s)")
    storm = "instead, all faults at random, for so long (180)"
    parser.add_argument("--storm", type=float, nargs="?", const=180.0, default=0.0, metavar="SECONDS", help=storm)
    parser.add_argument("--json", action="store_true", help="one JSON object a row, and no table")
    args = parser.parse_args()
    # The long ones first: they mostly wait, and the others fit in beside them.
    names = ["storm"] if args.storm else sorted(args.row or rows, key=lambda name: -rows[name].deadline_s)
    folder = Path(tempfile.mkdtemp(prefix="rollq-chaos-"))
    done: list[Account] = []
    start = time.monotonic()
    with ProcessPoolExecutor(args.at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = {}
        for seed in range(args.seed, args.seed + args.seeds):
            for name in names:
                place = folder / f"{name}-{seed}"
                tasks[pool.submit(run, name, seed, place, args.storm)] = place
        for future in as_completed(tasks):
            account = future.result()
            done.append(account)
            if args.json:
                print(json.dumps(account.asdict()), flush=True)
            else:
                verdict = f"skipped: {account.skipped}" if account.skipped else "ok"
                verdict = "WRONG: " + "; ".join(account.wrong) if account.wrong else verdict
                print(f"{account.row}, seed {account.seed}: {account.wall_s:.0f} s, {verdict}", flush=True)
            if not account.wrong:
                shutil.rmtree(tasks[future])
    return report(done, folder, time.monotonic() - start, quiet=args.json)


def report(done: list[Account], folder: Path, wall_s: float, *, quiet: bool) -> int:
    """The table, and where the logs of the bad rows are. Returns the exit code."""
    order = list(load())
    done.sort(key=lambda account: (order.index(account.row) if account.row in order else -1, account.seed))
    if not quiet:
        for account in done:
            if account.row == "storm":
                print(f"\nseed {account.seed}:\n{accounts.sums(account)}")
        print(f"\n{accounts.table(done)}\n\n{len(done)} rows in {wall_s:.0f} s")
    bad = [account for account in done if account.wrong]
    for account in bad:
        print(f"{account.row}, seed {account.seed}: {'; '.join(account.wrong)}", file=sys.stderr)
        print(f"  logs: {folder / f'{account.row}-{account.seed}'}", file=sys.stderr)
    if not bad:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

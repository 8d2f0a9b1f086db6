"""A trainer that holds a batch for ever, acknowledges late, or acknowledges three times."""

import argparse
import json
import sys
import time
from pathlib import Path

from rollq import Client
from rollq.batch import Batch
from rollq.errors import NotHeld
from rollq.export.record import record


def write(path: Path, batch: Batch) -> None:
    with path.open("a") as out:
        for trajectory in batch.trajectories:
            out.write(json.dumps(record(trajectory)) + "\n")


def wait_to_be_thawed() -> None:
    """Return once this process was frozen and continued."""
    before = time.monotonic()
    while (now := time.monotonic()) - before < 5:
        before = now
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--then", choices=("hold", "ack-late", "ack-thrice"), required=True)
    args = parser.parse_args()
    with Client(run=args.run) as client:
        batch = next(client.batches(groups=2, timeout=60))
        print("holding", flush=True)
        if args.then == "hold":
            time.sleep(600)
        if args.then == "ack-late":
            wait_to_be_thawed()
        try:
            batch.ack()
        except NotHeld as e:
            print(f"refused: {e}", flush=True)
            sys.exit(1)
        write(args.out, batch)
        if args.then == "ack-thrice":
            for _ in range(2):
                batch.ack()
                print("acknowledged again", flush=True)
        print("done", flush=True)


if __name__ == "__main__":
    main()

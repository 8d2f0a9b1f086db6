"""`python -m tests.rollback`: every step of the histories of some seeds, each with a few rollbacks.
Exit code 1 when a run does not end as it must.
"""

import argparse
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.rollback.history import Cut, Outcome, play

STEPS = 330
"""More than most histories have. A cut beyond the end of a history falls behind its end."""
TAILS = (1, 2, 3, 5, 8, 13, 30)
"""Records that are lost."""


def cases(seed: int, every: int) -> Iterator[tuple[Cut, ...]]:
    """After each step, one or two rollbacks: between two records, or inside of one."""
    rng = random.Random(seed)
    for step in range(2 + rng.randrange(every), STEPS, every):
        first = Cut(step, rng.choice(TAILS), rng.choice((0.0, 0.0, rng.random(), 0.999)))
        again = rng.random() < 0.2
        yield (
            (first, Cut(step + rng.randrange(60), rng.choice(TAILS), rng.random()))
            if again
            else (first,)
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rollback", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="histories (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="FIRST", help="the first seed (%(default)s)"
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="K", help="cut after every Kth step (%(default)s)"
    )
    parser.add_argument(
        "--at-once", type=int, default=2, metavar="N", help="histories at a time (%(default)s)"
    )
    args = parser.parse_args()
    folder, start, done = Path(tempfile.mkdtemp(prefix="rollq-rollback-")), time.monotonic(), []
    for seed in range(args.seed, args.seed + args.seeds):
        # New processes for each seed, because one has a thousand ports and takes each once.
        with ProcessPoolExecutor(
            args.at_once, mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            tasks = {
                pool.submit(play, place, seed, cuts): place
                for number, cuts in enumerate(cases(seed, args.every))
                for place in [folder / f"{seed}-{number}"]
            }
            for future in as_completed(tasks):
                done.append(outcome := future.result())
                if outcome.wrong:
                    print(f"{tasks[future]}: {outcome}", flush=True)
                else:
                    shutil.rmtree(tasks[future])
    return report(done, folder, time.monotonic() - start)


def report(done: list[Outcome], folder: Path, wall_s: float) -> int:
    wrong = [outcome for outcome in done if outcome.wrong]
    kinds = Counter(kind for outcome in done for kind in outcome.lost)
    print(f"\nlost records: {', '.join(f'{kind} {times}' for kind, times in kinds.most_common())}")
    print(f"attempts that were fenced: {sum(outcome.fenced for outcome in done)}")
    print(
        "groups that came again, their acknowledgement lost: "
        f"{sum(outcome.again for outcome in done)}"
    )
    print(
        f"{len(done)} rollbacks in {wall_s:.0f} s, {len(wrong)} wrong"
        + (f"; see {folder}" if wrong else "")
    )
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""How many machine instructions does a turn cost a worker, and the bare loop? For work on speed on
a noisy machine.

CPU time of the same work varies by a fifth from run to run; the number of instructions varies by a
hundredth. valgrind counts them in one process and one thread, without Celery. A first batch of
tasks is played and left out of the count, so that imports and data are not in it; two samples of
each of the next tasks follow. What the kernel does is not counted. valgrind must be installed, and
everything is fifty times slower under it.

    python benchmarks/count_instructions.py [--env tau2_2025:retail] [--tokenizer DIR] [--tasks 20]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bare_loop import Loop
from checks import add_tokenizer
from in_process import InProcess
from processes import Processes
from runs import SPLITS, indices
from tables import table

from rollq_worker.tokens.tokenizer import BUNDLED

SIDES = {"worker": "worker, without Celery", "bare": "bare loop: threads, urllib3"}
WARM_UP, SIZE = 8, 2
"""Tasks that are played before the count, and samples of each task that is counted."""
COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_tokenizer(parser)
    parser.add_argument(
        "--env", choices=SPLITS, default="tau2_2025:retail", help="environment (%(default)s)"
    )
    parser.add_argument(
        "--tasks",
        type=int,
        default=20,
        metavar="N",
        help=f"tasks, {SIZE} samples each (%(default)s)",
    )
    parser.add_argument("--play", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.play:
        return play(**json.loads(Path(args.play).read_text()))
    if not shutil.which("valgrind"):
        sys.exit(
            "valgrind counts the instructions, and it is not installed: apt-get install valgrind"
        )
    with Processes() as processes, ThreadPoolExecutor() as threads:
        setting = {
            "env": args.env,
            "split": SPLITS[args.env],
            "engine_url": processes.engine(args.env, args.tokenizer),
            "redis_url": processes.redis(),
            "tokenizer": args.tokenizer or str(BUNDLED),
            "concurrency": 1,
        }
        runs = [(side, tasks) for side in SIDES for tasks in (0, args.tasks)]
        files = [processes.folder / f"{side}-{tasks}.json" for side, tasks in runs]
        for file, (side, tasks) in zip(files, runs, strict=True):
            file.write_text(json.dumps({"side": side, "tasks": tasks, "setting": setting}))
        found = dict(
            zip(
                runs,
                threads.map(lambda file: count(file, processes.environment()), files),
                strict=True,
            )
        )
    report(found, args.tasks)
    return 0


def count(file: Path, environment: dict[str, str]) -> tuple[int, int]:
    """Instructions and turns of what the file says."""
    quiet = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command = ["valgrind", *quiet, sys.executable, __file__, "--play", str(file)]
    done = subprocess.run(
        command, env={**environment, "PYTHONHASHSEED": "0"}, capture_output=True, text=True
    )
    counted = COUNTED.search(done.stderr)
    if done.returncode or not counted:
        sys.exit(f"{file.stem} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return int(counted[1].replace(",", "")), int(done.stdout.split()[-1])


def play(side: str, tasks: int, setting: dict[str, Any]) -> int:
    """Plays the first tasks, then `tasks` others, and prints the number of turns."""
    env, split = setting["env"], setting["split"]
    chosen = indices(env, WARM_UP + tasks)
    samples = [*chosen[:WARM_UP], *(task for task in chosen[WARM_UP:] for _ in range(SIZE))]
    if side == "bare":
        loop = Loop(setting)
        print(sum(loop.rollout(task)["turns"] for task in samples))
    else:
        worker = InProcess(setting["redis_url"], setting["engine_url"], setting["tokenizer"])
        jobs = [
            worker.submit(f"{os.getpid()}-{place}", env, split, [task])
            for place, task in enumerate(samples)
        ]
        print(sum(worker.play(job) for (job,) in jobs))
    return 0


def report(found: dict[tuple[str, int], tuple[int, int]], tasks: int) -> None:
    each: dict[str, float] = {}
    for side in SIDES:
        (before, first), (after, all_turns) = found[side, 0], found[side, tasks]
        each[side] = (after - before) / (all_turns - first)
    print(
        table(
            ["process", "million instructions a turn"],
            [[SIDES[it], f"{each[it] / 1e6:.2f}"] for it in SIDES],
        )
    )
    print(f"\nthe worker over the bare loop: {each['worker'] / each['bare']:.2f}")


if __name__ == "__main__":
    sys.exit(main())

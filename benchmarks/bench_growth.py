"""Does a turn cost more late in a long episode, and with 100,000 finished jobs in Redis?

A worker's job runner plays in this process, one job after the other. First episodes of 70 turns:
the CPU from one request to the next, around turn 10 and around turn 60. Then tau2_2025:retail with
two Redis servers in turns, one empty and one whose run has many finished jobs: CPU a turn of this
process, and time in scripts a rollout. bench_crowd.py has the growth with episodes at once. Exit
code 1 when a target is missed.

    python benchmarks/bench_growth.py [--tokenizer DIR] [--finished 100000] [--json]
"""

import statistics
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import long_episodes
from checks import Check, add_tokenizer, conclude, parser_for
from cpu import require_linux
from in_process import InProcess
from ledger_load import SIZE, Episode, Load
from made_up_episode import episode
from processes import Processes
from redis_meter import RedisMeter
from tables import table

from rollq.events import Prompt
from rollq.job import Budget
from rollq_worker.tokens.tokenizer import Tokenizer

ENV, SPLIT = "tau2_2025:retail", "train"
EARLY, LATE, AROUND = 10, 60, 3
"""Turns that are compared, each with so many before and behind it."""
EPISODES = 12
TASKS, ROUNDS = 8, 5
"""Rollouts in a round, and rounds with each Redis server."""
TARGET = 1.2


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    parser.add_argument(
        "--finished", type=int, default=100_000, metavar="N", help="finished jobs (%(default)s)"
    )
    args = parser.parse_args(argv)
    require_linux()
    with Processes() as processes:
        turns = measure_turns(processes, args.tokenizer)
    with Processes() as processes:
        jobs = measure_jobs(processes, args.tokenizer, args.finished) if args.finished else {}
    result = {"turns": turns, "jobs": jobs, "finished": args.finished}
    checks = [Check(f"turn {LATE}, over turn {EARLY}", turns["growth"], TARGET)]
    print(
        f"CPU ms of turn {EARLY}: {turns['early_ms']:.2f}, of turn {LATE}: {turns['late_ms']:.2f}"
    )
    if jobs:
        rows = [
            [key, f"{jobs[f'{key}_empty']:.2f}", f"{jobs[f'{key}_full']:.2f}"] for key in FIGURES
        ]
        print("\n" + table(["", "no finished jobs", f"{args.finished:,}"], rows))
        for key in FIGURES:
            growth = jobs[f"{key}_full"] / jobs[f"{key}_empty"]
            checks.append(
                Check(f"{args.finished:,} finished jobs, over none: {key}", growth, TARGET)
            )
    return conclude(result, checks, args.json)


def measure_turns(processes: Processes, tokenizer: str | None) -> dict[str, float]:
    """Milliseconds of early and late turns. Their ratio is the median of the episodes'."""
    long_episodes.install(processes.folder)
    engine_url = processes.engine(long_episodes.NAME, tokenizer)
    redis_url = processes.redis()
    player = InProcess(redis_url, engine_url, tokenizer)
    begun: list[float] = []
    player.watch_turns(lambda: begun.append(time.process_time()))
    budget = Budget(max_turns=long_episodes.TURNS + 1)
    found = []
    for job_id in player.submit(
        "long", long_episodes.NAME, "train", range(EPISODES + 1), budget=budget
    ):
        begun.clear()
        player.play(job_id)
        took = [after - before for before, after in pairwise(begun)]
        found.append(
            [statistics.median(took[at - 1 - AROUND : at + AROUND]) * 1000 for at in (EARLY, LATE)]
        )
    measured = found[1:]  # the first one compiles templates and opens connections
    early, late = (statistics.median(column) for column in zip(*measured, strict=True))
    growth = statistics.median(late / early for early, late in measured)
    return {"early_ms": early, "late_ms": late, "growth": growth}


FIGURES = ("CPU ms a turn", "us in scripts a turn")


def measure_jobs(processes: Processes, tokenizer: str | None, finished: int) -> dict[str, float]:
    """Medians of each figure with an empty Redis and with a full one."""
    engine_url = processes.engine(ENV, tokenizer)
    urls = {name: processes.redis() for name in ("empty", "full")}
    players = {name: InProcess(url, engine_url, tokenizer) for name, url in urls.items()}
    fill(urls["full"], finished, players["full"].tokenizer)
    meters = {name: RedisMeter(url) for name, url in urls.items()}
    found: dict[str, list[list[float]]] = {name: [] for name in urls}
    for number in range(ROUNDS + 1):
        for name, player in players.items():
            # In the run that has the finished jobs; other groups than those.
            ids = player.submit("bench", ENV, SPLIT, range(number * TASKS, (number + 1) * TASKS))
            scripts = meters[name].script_us()
            cpu = time.process_time()
            turns = sum(map(player.play, ids))
            spent = (time.process_time() - cpu) * 1000
            found[name].append([spent / turns, (meters[name].script_us() - scripts) / turns])
    return {
        f"{figure}_{name}": statistics.median(column)
        for name, rows in found.items()
        for figure, column in zip(FIGURES, zip(*rows[1:], strict=True), strict=True)
    }


def fill(url: str, finished: int, tokenizer: Tokenizer) -> None:
    """Groups that are done and not acknowledged, with little in their journals."""
    made = episode()
    short = replace(
        made,
        events=(Prompt(ids=array("I", range(50)), messages=[], tools=[], at=1.0), made.events[-1]),
    )
    load = Load(url, "bench", Episode(short), tokenizer.hash, tokenizer.template_hash)
    for _ in range(finished // SIZE):
        for job_id in load.submit(load.group()):
            claim = load.claim(job_id)
            load.ledger.complete(job_id, claim.lease, 0, load.blobs)
    load.close()


if __name__ == "__main__":
    sys.exit(main())

"""What do 1,000 episodes at once ask of one worker process: memory, CPU a turn, and how long must a
thread wait?

An engine that takes 2 s a turn (lognormal), all episodes at once, from the first one on. A thread
in the worker sleeps 10 ms at a time and notes how late it wakes (probed_rollq.py), because leases
are renewed by such a thread; the same one alone in another process shows what the machine itself
adds. Then 64 at once on the same engine. Memory at rest is that of the worker which is ready and
has no job. Exit code 1 when a target is missed.

    python benchmarks/bench_crowd.py [--env tau2_2025:retail] [--tokenizer DIR] [-c 1000] [--json]
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from cpu import cpu_seconds, require_linux, resident_mb
from probed_rollq import longest_delay
from processes import Processes
from redis_meter import RedisMeter
from runs import SPLITS, indices, require_perfect, rollouts, submit, turns_of, wait_until_done
from tables import table

from rollq.client.client import Client

LATENCY_S = 2.0
FEW = 64
"""Episodes at once that are compared with the crowd."""
MOST_STALL_S = 0.5
"""Longest wait of a thread: a thirtieth of a lease."""
WARM_UP, MEASURED = 64, 192
"""Rollouts of the few."""
SIZE = 2
SETTLE_S = 5.0
"""Seconds after which a worker that is ready is at rest."""
PROBED = Path(__file__).with_name("probed_rollq.py")


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    parser.add_argument(
        "--env", choices=SPLITS, default="tau2_2025:retail", help="environment (%(default)s)"
    )
    parser.add_argument(
        "-c", "--concurrency", type=int, default=1000, help="episodes at once (%(default)s)"
    )
    args = parser.parse_args(argv)
    require_linux()
    with Processes() as processes:
        crowd = play_crowd(processes, args)
    with Processes() as processes:
        few = play_few(processes, args)
    result = {"crowd": crowd, "few": few, "growth": crowd["ms_a_turn"] / few["ms_a_turn"]}
    report(result, args)
    return conclude(result, checks(result, args.concurrency), args.json)


def play_crowd(processes: Processes, args: argparse.Namespace) -> dict[str, float]:
    engine_url = processes.engine(args.env, args.tokenizer, LATENCY_S)
    redis_url = processes.redis()
    inside, control = processes.folder / "inside", processes.folder / "control"
    probed = (str(PROBED), str(inside))
    child = processes.worker(redis_url, engine_url, args.concurrency, args.tokenizer, rollq=probed)
    alone = processes.start("control", [str(PROBED), str(control), "control"])
    processes.wait_for_line(alone, "control: ready")
    time.sleep(SETTLE_S)
    redis = RedisMeter(redis_url)
    at_rest = resident_mb(child.pid)
    cpu = cpu_seconds(child.pid)
    redis_cpu = redis.cpu_seconds()
    with Client(redis_url, run="crowd") as client:
        began = time.monotonic()
        submit(client, args.env, indices(args.env, args.concurrency // SIZE), SIZE)
        wait_until_done(client, args.concurrency // SIZE * SIZE, look_every_s=0.5)
        ended, spent, redis_spent = (
            time.monotonic(),
            cpu_seconds(child.pid) - cpu,
            redis.cpu_seconds() - redis_cpu,
        )
        time.sleep(2.0)  # the probe's last line
        played = rollouts(client)
    require_perfect("the crowd", played)
    return {
        "rollouts": len(played),
        "turns": turns_of(played),
        "ms_a_turn": spent / turns_of(played) * 1000,
        "redis_ms_a_rollout": redis_spent / len(played) * 1000,
        "at_rest_mb": at_rest,
        "peak_mb": resident_mb(child.pid, "VmHWM"),
        "longest_stall_s": longest_delay(inside, began, ended),
        "longest_stall_of_the_machine_s": longest_delay(control, began, ended),
        "wall_s": ended - began,
    }


def play_few(processes: Processes, args: argparse.Namespace) -> dict[str, float]:
    engine_url = processes.engine(args.env, args.tokenizer, LATENCY_S)
    redis_url = processes.redis()
    child = processes.worker(redis_url, engine_url, FEW, args.tokenizer)
    spent = 0.0
    played = []
    for run, count in (("warm-up", WARM_UP), ("few", MEASURED)):
        with Client(redis_url, run=run) as client:
            cpu = cpu_seconds(child.pid)
            submit(client, args.env, indices(args.env, count // SIZE), SIZE)
            wait_until_done(client, count)
            spent = cpu_seconds(child.pid) - cpu
            played = rollouts(client)
    require_perfect("the few", played)
    return {
        "rollouts": len(played),
        "turns": turns_of(played),
        "ms_a_turn": spent / turns_of(played) * 1000,
    }


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    crowd, few = result["crowd"], result["few"]
    print(
        f"{crowd['rollouts']} rollouts of {args.env}, all at once, "
        f"{crowd['turns'] / crowd['rollouts']:.1f} turns each, {LATENCY_S:g} s a turn; "
        f"{'given' if args.tokenizer else 'bundled'} tokenizer; all rewards 1.0\n"
    )
    at_rest, peak = crowd["at_rest_mb"], crowd["peak_mb"]
    rows = [
        ["memory at rest, MB", f"{at_rest:.0f}"],
        ["memory, most, MB", f"{peak:.0f}"],
        ["memory of an episode, kB", f"{(peak - at_rest) / args.concurrency * 1000:.0f}"],
        ["CPU ms a turn", f"{crowd['ms_a_turn']:.2f}"],
        ["Redis's CPU ms a rollout", f"{crowd['redis_ms_a_rollout']:.2f}"],
        [f"CPU ms a turn, {FEW} at once", f"{few['ms_a_turn']:.2f}"],
        ["longest stall of a thread, ms", f"{crowd['longest_stall_s'] * 1000:.0f}"],
        [
            "of a thread alone in its process, ms",
            f"{crowd['longest_stall_of_the_machine_s'] * 1000:.0f}",
        ],
        ["wall s", f"{crowd['wall_s']:.0f}"],
    ]
    print(table(["", ""], rows))


def checks(result: dict[str, Any], at_once: int) -> list[Check]:
    crowd = result["crowd"]
    return [
        Check(
            f"{at_once} at once: memory of an episode",
            (crowd["peak_mb"] - crowd["at_rest_mb"]) / at_once,
            0.4,
            "MB",
            ratio=False,
        ),
        Check(
            f"{at_once} at once: longest stall of a thread",
            crowd["longest_stall_s"],
            MOST_STALL_S,
            "s",
            ratio=False,
        ),
        Check("memory of a worker at rest", crowd["at_rest_mb"], 150.0, "MB", ratio=False),
        Check(f"{at_once} at once: CPU a turn, over that of {FEW}", result["growth"], 1.1),
    ]


if __name__ == "__main__":
    sys.exit(main())

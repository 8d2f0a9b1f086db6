"""What does a turn cost a worker, with journal, ledger, lease and Celery, compared with loops that
have none of them?

The same tasks at engine latency 0, played in turns by a `rollq worker` process, by the worker's own
loop without ledger and Celery (episode_loop.py), and by the bare loop of bare_loop.py (threads,
urllib3, token ids), which is the floor. Then a few of them by the loop of naive_loop.py, which is
written as RL examples are. One replay engine answers all. CPU is user and system time of the
process that plays, its children included; engine, Redis and producer are other processes. Every
round has the same tasks, so the worker and its loop remember the ids of their texts, as they do in
the rollouts of a group. Exit code 1 when a target is missed.

    python benchmarks/bench_turn.py [--env tau2_2025:retail] [--tokenizer DIR] [-c 64] [--tasks 48] [--repeats 5]
        [--json]
"""  # noqa: E501

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from cpu import cpu_seconds, require_linux, resident_mb
from processes import Processes
from redis_meter import RedisMeter
from runs import (
    SPLITS,
    TIMEOUT_S,
    indices,
    require_perfect,
    rollouts,
    submit,
    turns_of,
    wait_until_done,
)
from tables import ms, table

from rollq.client.client import Client
from rollq.env import RESPOND
from rollq_worker.environments import domain
from rollq_worker.tokens.tokenizer import BUNDLED

NAIVE = "tau2_2025:retail"
"""The environment that the naive loop knows."""
SIZE = 2
"""Number of samples of each task."""
LOOPS = {"loop": "episode_loop.py", "bare": "bare_loop.py"}
OF_BARE = {"retail": 1.6, "airline": 2.25}
"""Target: CPU of the worker, over that of the bare loop, by the end of the environment's name.
Airline's episodes are half as long, so what a job costs counts twice.
"""
SHARE_OF_BARE = 1.0
"""Target: CPU of the worker, less that of its loop alone, over that of the bare loop."""
REDIS_SHARE = 0.15
"""Target: CPU of Redis, over that of the worker."""

Side = dict[str, Any]
"""cpu_s, wall_s and the rollouts of one side: reward, turns and tokens of each."""


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    require_linux()
    with Processes() as processes:
        engine_url = processes.engine(args.env, args.tokenizer)
        worker = Worker(processes, engine_url, args)
        loops = {name: Loop(script, processes, engine_url, args) for name, script in LOOPS.items()}
        rounds: dict[str, list[Side]] = {name: [] for name in ("worker", *loops)}
        for number in range(args.repeats + 1):
            rounds["worker"].append(worker.play(number))
            for name, loop in loops.items():
                rounds[name].append(loop.play())
        for loop in loops.values():
            loop.close()
        if args.naive:
            setting = (args.env, args.tokenizer, args.concurrency)
            rounds["naive"] = [play_by_naive_loop(processes, engine_url, args.naive, *setting)]
    result = {"at_rest_mb": worker.at_rest_mb} | compare(
        {name: each[1:] or each for name, each in rounds.items()}
    )
    report(result, args)
    return conclude(result, checks(result, args.env), args.json)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    parser.add_argument("--env", choices=SPLITS, default=NAIVE, help="environment (%(default)s)")
    parser.add_argument(
        "-c", "--concurrency", type=int, default=64, help="rollouts at once (%(default)s)"
    )
    parser.add_argument(
        "--tasks",
        type=int,
        default=48,
        metavar="N",
        help=f"tasks, {SIZE} samples each (%(default)s)",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="measured rounds, after one to warm up (%(default)s)"
    )
    parser.add_argument(
        "--naive", type=int, default=4, metavar="N", help="tasks for the naive loop (%(default)s)"
    )
    args = parser.parse_args(argv)
    if args.env != NAIVE:
        args.naive = 0
    return args


class Worker:
    """A worker process. Its jobs come through Redis and Celery, as usual."""

    def __init__(self, processes: Processes, engine_url: str, args: argparse.Namespace) -> None:
        self.redis_url = processes.redis()
        self.meter = RedisMeter(self.redis_url)
        self.env = args.env
        self.tasks = indices(args.env, args.tasks)
        self.child = processes.worker(self.redis_url, engine_url, args.concurrency, args.tokenizer)
        self.at_rest_mb = resident_mb(self.child.pid)

    def play(self, number: int) -> Side:
        """One run: submit, wait for all jobs, and only then read the trajectories."""
        redis = self.meter.cpu_seconds()
        cpu = cpu_seconds(self.child.pid)
        with Client(self.redis_url, run=f"round-{number}") as client:
            began = time.monotonic()
            submit(client, self.env, self.tasks, SIZE)
            wait_until_done(client, len(self.tasks) * SIZE)
            took = {
                "cpu_s": cpu_seconds(self.child.pid) - cpu,
                "wall_s": time.monotonic() - began,
                "redis_cpu_s": self.meter.cpu_seconds() - redis,
            }
            return {**took, "rollouts": rollouts(client)}


class Loop:
    """A process of bare_loop.py or episode_loop.py, which plays when it is told to."""

    def __init__(
        self, script: str, processes: Processes, engine_url: str, args: argparse.Namespace
    ) -> None:
        setting = {
            "env": args.env,
            "split": SPLITS[args.env],
            "engine_url": engine_url,
            "tokenizer": args.tokenizer or str(BUNDLED),
            "concurrency": args.concurrency,
        }
        self.script = script
        file = processes.folder / f"{script}.json"
        file.write_text(json.dumps(setting))
        self.line = (
            json.dumps([task for task in indices(args.env, args.tasks) for _ in range(SIZE)]) + "\n"
        )
        command = [sys.executable, str(Path(__file__).with_name(script)), str(file)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=processes.environment(),
        )
        self._read()

    def play(self) -> Side:
        assert self.process.stdin
        self.process.stdin.write(self.line)
        self.process.stdin.flush()
        return dict(json.loads(self._read()))

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline() or sys.exit(
            f"{self.script} ended early; its error stands above"
        )

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


def play_by_naive_loop(
    processes: Processes,
    engine_url: str,
    tasks: int,
    env: str,
    tokenizer: str | None,
    concurrency: int,
) -> Side:
    """Plays the first tasks with the naive loop."""
    setting, out = processes.folder / "tasks.json", processes.folder / "naive.json"
    environment = domain(env).open(SPLITS[env], 0, {})
    each = [_plain(env, index) for index in indices(env, tasks)]
    shown = {"policy": environment.system_prompt, "tools": list(environment.tools)}
    measured = [task for task in each for _ in range(SIZE)]
    setting.write_text(json.dumps({**shown, "tasks": measured, "warm_up": each[:1]}))
    script = Path(__file__).with_name("naive_loop.py")
    words = [
        str(script),
        str(setting),
        engine_url,
        tokenizer or str(BUNDLED),
        str(concurrency),
        str(out),
    ]
    child = processes.start("naive", words)
    processes.wait_for_line(child, "naive loop: finished", TIMEOUT_S)
    return dict(json.loads(out.read_text()))


def _plain(env: str, index: int) -> dict[str, Any]:
    task = domain(env).task(SPLITS[env], index)
    return {
        "opening": task.opening,
        "replies": list(task.replies),
        "outputs": list(task.outputs),
        "truth": [[move.name, dict(move.arguments)] for move in task.moves if move.name != RESPOND],
    }


def compare(rounds: dict[str, list[Side]]) -> dict[str, Any]:
    """The medians of each side. Exits when the sides have not done the same work."""
    for name, sides in rounds.items():
        for side in sides:
            require_perfect(f"the side {name!r}", side["rollouts"])
    played = {
        name: {turns_of(side["rollouts"]) for side in rounds[name]} for name in ("worker", *LOOPS)
    }
    for naive in rounds.get("naive", ()):  # plays the first tasks only
        some = naive["rollouts"], rounds["bare"][0]["rollouts"][: len(naive["rollouts"])]
        played["naive"], played["bare, of these"] = (
            {sum(one["turns"] for one in side)} for side in some
        )
    same = played["worker"] == played["loop"] == played["bare"] and played.get(
        "naive"
    ) == played.get("bare, of these")
    if not same or len(played["bare"]) != 1:
        sys.exit(f"not the same work: {played} turns in a round")
    result: dict[str, Any] = {name: figures(sides) for name, sides in rounds.items()}
    ms_a_turn = {name: [ms_of(side) for side in sides] for name, sides in rounds.items()}
    pairs = [one / other for one, other in zip(ms_a_turn["worker"], ms_a_turn["bare"], strict=True)]
    result |= {"of_bare": statistics.median(pairs), "of_bare_each": pairs}
    more = [one - other for one, other in zip(ms_a_turn["worker"], ms_a_turn["loop"], strict=True)]
    result["durability_ms_a_turn"] = statistics.median(more)
    result["redis_ms_a_rollout"] = statistics.median(
        side["redis_cpu_s"] / len(side["rollouts"]) * 1000 for side in rounds["worker"]
    )
    if "naive" in rounds:
        result["of_naive"] = result["worker"]["ms_a_turn"] / result["naive"]["ms_a_turn"]
    return result


def ms_of(side: Side) -> float:
    """CPU milliseconds a turn."""
    return float(side["cpu_s"] / turns_of(side["rollouts"]) * 1000)


def figures(sides: list[Side]) -> dict[str, float]:
    first = sides[0]["rollouts"]
    each = [ms_of(side) for side in sides]
    return {
        "ms_a_turn": statistics.median(each),
        "least": min(each),
        "most": max(each),
        "wall_s": statistics.median(side["wall_s"] for side in sides),
        "rollouts": len(first),
        "turns": turns_of(first) / len(first),
        "tokens": statistics.mean(rollout["tokens"] for rollout in first),
    }


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    names = {
        "worker": "rollq worker",
        "loop": "its loop alone",
        "bare": "bare loop: threads, urllib3",
        "naive": "naive loop: asyncio, text",
    }
    work = result["worker"]
    print(
        f"{work['rollouts']} rollouts of {args.env}, {args.concurrency} at once, "
        f"{work['turns']:.1f} turns and {work['tokens']:.0f} tokens each, "
        f"{'given' if args.tokenizer else 'bundled'} tokenizer; {args.repeats} rounds; all rewards "
        "1.0\n"
    )
    rows = []
    for name, title in names.items():
        if side := result.get(name):
            span = f"{ms(side['least'] / 1000)}-{ms(side['most'] / 1000)}"
            rollout = ms(side["ms_a_turn"] * side["turns"] / 1000)
            rows.append(
                [title, ms(side["ms_a_turn"] / 1000), span, rollout, f"{side['wall_s']:.1f}"]
            )
    print(table(["process", "CPU ms a turn", "of all rounds", "CPU ms a rollout", "wall s"], rows))
    print(f"\nRedis beside the worker: {result['redis_ms_a_rollout']:.2f} ms a rollout")
    if "of_naive" in result:
        print(f"the naive loop costs {1 / result['of_naive']:.1f} times the worker")
    print(
        "the worker over the bare loop, round by round: "
        f"{', '.join(f'{it:.2f}' for it in result['of_bare_each'])}"
    )


def checks(result: dict[str, Any], env: str) -> list[Check]:
    worker = result["worker"]
    return [
        Check(
            f"{env}: CPU a turn, over the bare loop's",
            result["of_bare"],
            OF_BARE.get(env.rpartition(":")[2], max(OF_BARE.values())),
        ),
        Check(
            f"{env}: durability, over the bare loop's turn",
            result["durability_ms_a_turn"] / result["bare"]["ms_a_turn"],
            SHARE_OF_BARE,
        ),
        Check(
            f"{env}: Redis's CPU, over the worker's",
            result["redis_ms_a_rollout"] / (worker["ms_a_turn"] * worker["turns"]),
            REDIS_SHARE,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())

"""CPU of one rollout of tau2:retail: a rollq worker against a naive loop that sends text, in the same run.

Both play the same tasks, 16 at once, against the same replay engine, which answers at once and makes no mistakes. The
benchmark compares the user and system time of the process that plays; engine and Redis are other processes. Exit code 1
when the worker is not at least 4 times cheaper.

    python benchmarks/bench_rollout.py [--tokenizer DIR] [--tasks N] [--json]
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu import cpu_seconds, require_linux
from processes import Processes
from tables import ms, table

from rollq.client.client import Client
from rollq.job import Job
from rollq_worker.environments import domain
from rollq_worker.protocols import RESPOND
from rollq_worker.tokens.tokenizer import BUNDLED

ENV, SPLIT = "tau2:retail", "train"
CONCURRENCY = 16
SIZE = 2
"""Number of samples of each task."""
WARM_UP = 16
"""Number of rollouts of other tasks before the measured ones, for imports, data and connections."""
MIN_RATIO = 4.0
TIMEOUT_S = 600.0

RECORDED = {
    "hash": (30, 34),
    "load": (12, 18),
    "tokenise": (2, 2),
    "template": (1, 1),
    "parser": (0.15, 0.15),
    "rest": (2.7, 3.5),
}
"""Milliseconds a turn, measured on tau-bench retail with the loop of slime's example: 7.9 turns and 7,300 tokens a
rollout, 64 at once, the Qwen vocabulary."""
RECORDED_ALONE = {"hash": (61, 83), "load": (18, 18)}
"""Milliseconds a call on tau-bench retail in a process that does nothing else."""
NAMES = {
    "hash": "whole-database hash",
    "load": "data reload",
    "tokenise": "tokenise",
    "template": "chat template",
    "parser": "parser and tool schemas",
    "tool": "tools",
    "rest": "HTTP, JSON, event loop",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", metavar="DIR", help="tokenizer.json, its config and a chat template (bundled)")
    parser.add_argument("--tasks", type=int, default=30, metavar="N", help=f"tasks, {SIZE} samples each (%(default)s)")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args(argv)
    require_linux()
    with Processes() as processes:
        engine_url = processes.engine(ENV, args.tokenizer)
        worker = play_by_worker(processes, engine_url, args.tasks, args.tokenizer)
        naive = play_by_naive_loop(processes, engine_url, args.tasks, args.tokenizer)
    result = compare(worker, naive)
    report(result, args.tokenizer)
    if args.json:
        print(json.dumps(result))
    return 0 if result["ratio"] >= MIN_RATIO else 1


def play_by_worker(processes: Processes, engine_url: str, tasks: int, tokenizer: str | None) -> dict[str, Any]:
    """Play the tasks with a worker process. Jobs come through Redis and Celery, as usual."""
    redis_url = processes.redis()
    child = processes.worker(redis_url, engine_url, CONCURRENCY, tokenizer)
    ready = cpu_seconds(child.pid)
    play_run(redis_url, "warm-up", range(tasks, tasks + WARM_UP), 1)
    warm = cpu_seconds(child.pid)
    result = play_run(redis_url, "measured", range(tasks), SIZE)
    cpu = cpu_seconds(child.pid) - warm
    child.stop()
    return {"imports_cpu_s": ready, "warm_up_cpu_s": warm - ready, "cpu_s": cpu, **result}


def play_run(redis_url: str, run: str, tasks: Sequence[int], size: int) -> dict[str, Any]:
    """Submit, wait for all jobs, and only then read the trajectories."""
    count = domain(ENV).splits()[SPLIT]
    with Client(redis_url, run=run) as client:
        began = time.monotonic()
        client.submit(Job(env=ENV, split=SPLIT, task=task % count, size=size) for task in tasks)
        client.seal()
        while (stats := client.stats())["done"] + stats["dead"] < len(tasks) * size:
            if time.monotonic() - began > TIMEOUT_S:
                sys.exit(f"the worker has not finished within {TIMEOUT_S:g} s: {stats}")
            time.sleep(0.1)
        wall = time.monotonic() - began
        if stats["dead"]:
            sys.exit(f"{stats['dead']} jobs are dead: {client.dead()[0]}")
        rollouts = []
        for batch in client.batches(groups=1):
            for one in batch.trajectories:
                prompt = len(one.events[0].ids)
                rollouts.append({"reward": one.reward, "turns": one.turns, "prompt": prompt, "tokens": len(one.tokens)})
            batch.ack()
    return {"wall_s": wall, "rollouts": rollouts}


def play_by_naive_loop(processes: Processes, engine_url: str, tasks: int, tokenizer: str | None) -> dict[str, Any]:
    """Play the same tasks with the naive loop."""
    setting, out = processes.folder / "tasks.json", processes.folder / "naive.json"
    retail = domain(ENV)
    environment = retail.open(SPLIT, 0, {})
    each = [_plain(index % retail.splits()[SPLIT]) for index in range(tasks + WARM_UP)]
    measured = [task for task in each[:tasks] for _ in range(SIZE)]
    shown = {"policy": environment.system_prompt, "tools": list(environment.tools)}
    setting.write_text(json.dumps({**shown, "tasks": measured, "warm_up": each[tasks:]}))
    script = Path(__file__).with_name("naive_loop.py")
    words = [str(script), str(setting), engine_url, tokenizer or str(BUNDLED), str(CONCURRENCY), str(out)]
    child = processes.start("naive", words)
    processes.wait_for_line(child, "naive loop: finished", TIMEOUT_S)
    return dict(json.loads(out.read_text()))


def _plain(index: int) -> dict[str, Any]:
    task = domain(ENV).task(SPLIT, index)
    return {
        "opening": task.opening,
        "replies": list(task.replies),
        "outputs": list(task.outputs),
        "truth": [[move.name, dict(move.arguments)] for move in task.moves if move.name != RESPOND],
    }


def compare(worker: dict[str, Any], naive: dict[str, Any]) -> dict[str, Any]:
    """Compare the two sides. Exits when they have not done the same work."""
    for name, side in (("worker", worker), ("naive loop", naive)):
        rewards = [rollout["reward"] for rollout in side["rollouts"]]
        if set(rewards) != {1.0}:
            sys.exit(f"the {name} earned {statistics.mean(rewards):.3f} on average, not 1.0: it is not the same work")
    turns = [sum(rollout["turns"] for rollout in side["rollouts"]) for side in (worker, naive)]
    if turns[0] != turns[1]:
        sys.exit(f"the worker played {turns[0]} turns, the naive loop {turns[1]}: it is not the same work")
    count = len(worker["rollouts"])
    parts = {name: naive["parts"][name] for name in NAMES if name != "rest"}
    parts["rest"] = [naive["cpu_s"] - sum(seconds for seconds, _ in parts.values()), turns[0]]
    database = sum(parts[name][0] for name in ("hash", "load"))
    return {
        "ratio": naive["cpu_s"] / worker["cpu_s"],
        "ratio_without_data": (naive["cpu_s"] - database) / worker["cpu_s"],
        "rollouts": count,
        "turns": turns[0] / count,
        "tokens": _mean(worker, "tokens"),
        "prompt_tokens": _mean(worker, "prompt"),
        "worker": _figures(worker, count, turns[0]),
        "naive_loop": _figures(naive, count, turns[0]),
        "parts_ms_a_turn": {name: seconds / turns[0] * 1000 for name, (seconds, _) in parts.items()},
        "parts_ms_a_call": {name: seconds / calls * 1000 for name, (seconds, calls) in parts.items()},
        "apart_ms_a_call": {
            when: {name: seconds * 1000 for name, seconds in parts.items()} for when, parts in naive["apart"].items()
        },
        "collector_ms_a_turn": naive["parts"]["collector"][0] / turns[0] * 1000,
    }


def _mean(side: dict[str, Any], name: str) -> float:
    return statistics.mean(rollout[name] for rollout in side["rollouts"])


def _figures(side: dict[str, Any], rollouts: int, turns: int) -> dict[str, float]:
    kept = {name: side[name] for name in ("imports_cpu_s", "warm_up_cpu_s", "cpu_s", "wall_s")}
    return {**kept, "ms_a_rollout": side["cpu_s"] / rollouts * 1000, "ms_a_turn": side["cpu_s"] / turns * 1000}


def report(result: dict[str, Any], tokenizer: str | None) -> None:
    print(
        f"{result['rollouts']} rollouts of {ENV}, {CONCURRENCY} at once, {result['turns']:.1f} turns and"
        f" {result['tokens']:.0f} tokens each ({result['prompt_tokens']:.0f} of them the first prompt),"
        f" {'given' if tokenizer else 'bundled'} tokenizer; all rewards 1.0\n"
    )
    rows = []
    for name, key in (("rollq worker", "worker"), ("naive loop", "naive_loop")):
        side = result[key]
        once = [f"{side['imports_cpu_s']:.1f}", f"{side['warm_up_cpu_s']:.1f}", f"{side['wall_s']:.1f}"]
        rows.append([name, ms(side["ms_a_turn"] / 1000), ms(side["ms_a_rollout"] / 1000), *once])
    head = ["process", "CPU ms a turn", "CPU ms a rollout", "imports, s", f"warm-up of {WARM_UP}, s", "wall s"]
    print(table(head, rows))
    print("\nWhere the naive loop's CPU goes, beside what was recorded with the loop of slime's example:\n")
    head = ["part", "ms a turn", "recorded", "times", "ms a call", "alone", "recorded alone", "collector off"]
    print(table(head, part_rows(result)))
    quiet = {name: ms(value / 1000) for name, value in result["apart_ms_a_call"]["collector off"].items()}
    print(f"\nin the garbage collector: {ms(result['collector_ms_a_turn'] / 1000)} ms a turn; without it, of a reload")
    print(f"{quiet['JSON']} ms are reading JSON, of a hash {quiet['hash of dicts']} ms hashing what are dicts by then")
    print(f"without hash and reload the loop would cost {result['ratio_without_data']:.2f} times the worker")
    verdict = "ok" if result["ratio"] >= MIN_RATIO else f"BELOW {MIN_RATIO:g}"
    print(f"ratio: the worker is {result['ratio']:.1f} times cheaper a rollout ({verdict})")


def part_rows(result: dict[str, Any]) -> list[list[str]]:
    rows, apart = [], result["apart_ms_a_call"]
    for name, title in NAMES.items():
        now = result["parts_ms_a_turn"][name]
        row = [title, ms(now / 1000), _span(RECORDED.get(name)), _times(now, RECORDED.get(name))]
        row += [ms(result["parts_ms_a_call"][name] / 1000)]
        alone, quiet = (ms(apart[when][name] / 1000) if name in apart[when] else "" for when in apart)
        rows.append([*row, alone, _span(RECORDED_ALONE.get(name)), quiet])
    total = result["naive_loop"]["ms_a_turn"]
    recorded = tuple(sum(span[end] for span in RECORDED.values()) for end in (0, 1))
    return [*rows, ["together", ms(total / 1000), _span(recorded), _times(total, recorded), "", "", "", ""]]


def _span(span: tuple[float, ...] | None) -> str:
    if span is None:
        return ""
    low, high = (f"{value:.3g}" for value in span)
    return low if low == high else f"{low}-{high}"


def _times(now: float, span: tuple[float, ...] | None) -> str:
    """The measured value over the nearer end of the recorded range; 1.0 inside the range."""
    if span is None:
        return ""
    nearest = min(max(now, span[0]), span[1])
    return f"{now / nearest:.1f}" if now >= nearest / 10 else f"{now / nearest:.2f}"


if __name__ == "__main__":
    sys.exit(main())

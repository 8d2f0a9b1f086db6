"""How much of an engine's speed a fleet of workers keeps: runs of real workers, and their episodes
by a bare client.

For each number of slots and of worker processes: a fresh Redis, workers, and episodes with a fixed
number of turns (`load.py`), two for each slot. `bare_client.py` plays them on the same engine, with
as many at once. The two play in turns, and each round another one begins; the engine's prefix cache
is emptied before each. `ratio` is the run's tokens a second as a share of the client's, the median
of the rounds; 1.0 is what any client could reach.

A server with --enable-metrics also tells how many prefill and decode batches each of them took:
requests that arrive one by one take more prefill batches, during which nothing is decoded.

    make bench-gpu ENGINE=http://127.0.0.1:30000 TOKENIZER=DIR ARGS="--slots 64,256 --workers 1,4 --json FILE"

The engine must run already and do nothing else. Needs Linux.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import requests
from cpu import cpu_seconds, require_linux, resident_mb
from gpu.bare_client import replay
from gpu.turns import Turn, rates, turns_of
from processes import Processes
from redis_meter import RedisMeter
from tables import table

import rollq
from rollq.client.client import Client
from rollq.job import Budget, Job
from rollq.trajectory import Trajectory
from rollq_worker.environments.files import add_file
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import load_tokenizer

LOAD = str(Path(__file__).with_name("load.py"))
GROUP = 4
PASSES = re.compile(
    r'^sglang:cuda_graph_passes_total\{[^}]*mode="(prefill|decode)_\w+"[^}]*\} (\S+)$', re.M
)


def main() -> None:
    require_linux()
    arguments = parse()
    engine = arguments.engine.rstrip("/")
    results: dict[str, Any] = {"facts": facts(engine, arguments), "pairs": [], "left_out": []}
    until = time.monotonic() + arguments.budget
    longest = 0.0
    for slots in arguments.slots:
        for workers in arguments.workers:
            began = time.monotonic()
            if began + longest > until:
                results["left_out"].append({"slots": slots, "workers": workers})
                continue
            pair = measure(engine, arguments, slots, workers)
            results["pairs"].append(pair)
            longest = time.monotonic() - began
            print(line_of(pair), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print(as_table(results))
    if results["left_out"]:
        print(f"left out, for lack of time (--budget): {results['left_out']}")
    sys.exit(any(pair["ratio"] < arguments.least for pair in results["pairs"]))


def parse() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True, help="address of a running SGLang server")
    parser.add_argument("--tokenizer", required=True, help="folder of the model's tokenizer")
    parser.add_argument(
        "--slots", type=numbers, default=[64, 256, 512, 1024], help="episodes at once"
    )
    parser.add_argument(
        "--workers",
        type=numbers,
        default=[1, 4],
        help="worker processes that share the slots (1,4)",
    )
    parser.add_argument("--turns", type=int, default=6, help="turns of an episode (6)")
    parser.add_argument("--rounds", type=float, default=2.0, help="episodes for each slot (2)")
    parser.add_argument("--repeats", type=int, default=3, help="times that both play (3)")
    parser.add_argument(
        "--max-new-tokens", type=int, default=1024, help="most tokens of a turn (1024)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=3600.0,
        help="seconds; a pair that may not end in time is left out (3600)",
    )
    parser.add_argument(
        "--least", type=float, default=0.97, help="exit with 1 if a ratio is below it (0.97)"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file, after each pair")
    return parser.parse_args()


def facts(engine: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Facts of the machine, the engine and this measurement."""
    try:
        info = requests.get(f"{engine}/server_info", timeout=30).json()
    except requests.RequestException as e:
        sys.exit(f"no SGLang server answers at {engine}: {type(e).__name__}")
    told = (
        "version",
        "max_total_num_tokens",
        "max_running_requests",
        "attention_backend",
        "disable_overlap_schedule",
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rollq": rollq.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "engine": {name: info[name] for name in told if name in info},
        "turns": arguments.turns,
        "rounds": arguments.rounds,
        "repeats": arguments.repeats,
        "max_new_tokens": arguments.max_new_tokens,
    }


def measure(engine: str, arguments: argparse.Namespace, slots: int, workers: int) -> dict[str, Any]:
    stop_ids = ChatRenderer(load_tokenizer(arguments.tokenizer), ()).stop_ids
    trajectories: list[Trajectory] = []
    rounds = []
    for number in range(arguments.repeats):
        sides = ("rollq", "bare") if number % 2 == 0 else ("bare", "rollq")
        played: dict[str, Any] = {"first": sides[0]}
        for side in sides:
            if side == "rollq":
                trajectories, played[side] = play(engine, arguments, slots, workers)
            else:
                played[side] = play_again(trajectories, engine, slots, stop_ids)
        for name, rate in (("ratio", "tokens_s"), ("ratio_steady", "steady_tokens_s")):
            played[name] = round(played["rollq"][rate] / played["bare"][rate], 4)
        rounds.append(played)
    ratios = {name: median(one[name] for one in rounds) for name in ("ratio", "ratio_steady")}
    return {"slots": slots, "workers": workers, **ratios, "rounds": rounds}


def play_again(
    trajectories: list[Trajectory], engine: str, slots: int, stop_ids: Sequence[int]
) -> dict[str, Any]:
    """What a bare client makes of a run's episodes."""
    whole = [one for one in trajectories if not one.of_agent and len(turns_of(one)) == one.turns]
    empty_cache(engine)
    before = time.process_time()
    passes = passes_of(engine)
    episodes = replay(whole, engine, slots, stop_ids)
    spent = time.process_time() - before
    figures = rates_of(episodes)
    return {
        **figures,
        "left_out": len(trajectories) - len(whole),
        "cpu_ms_a_turn": round(1000 * spent / figures["turns"], 3),
        **grown(passes, passes_of(engine)),
    }


def rates_of(episodes: list[list[Turn]]) -> dict[str, Any]:
    return {**rates([turn for turns in episodes for turn in turns]), **pauses(episodes)}


def play(
    engine: str, arguments: argparse.Namespace, slots: int, workers: int
) -> tuple[list[Trajectory], dict[str, Any]]:
    """A run with real workers: its trajectories, and what it made and cost."""
    groups = max(1, round(arguments.rounds * slots / GROUP))
    processes = Processes()
    try:
        redis_url = processes.redis()
        env = add_file(LOAD)
        flags = [
            "--env",
            LOAD,
            "--redis",
            redis_url,
            "--engine",
            engine,
            "--tokenizer",
            arguments.tokenizer,
        ]
        flags += ["-c", str(max(1, slots // workers))]
        children = [
            processes.start("worker", ["-m", "rollq", "worker", *flags]) for _ in range(workers)
        ]
        for child in children:
            processes.wait_for_line(child, ": ready, ")
        empty_cache(engine)
        client = Client(redis_url, run="load")
        meter = RedisMeter(redis_url)
        budget = Budget(max_turns=arguments.turns, max_new_tokens=arguments.max_new_tokens)
        passes = passes_of(engine)
        before = [cpu_seconds(child.pid) for child in children]
        redis_before = meter.cpu_seconds()
        client.submit(
            (Job(env=env, task=index, size=GROUP, budget=budget) for index in range(groups)),
            ahead=groups,
        )
        client.seal()
        while (stats := client.stats())["done"] + stats["dead"] < groups * GROUP:
            time.sleep(0.5)
        turns = groups * GROUP * arguments.turns
        spent = sum(cpu_seconds(child.pid) for child in children) - sum(before)
        costs = {
            "dead": stats["dead"],
            "worker_cpu_ms_a_turn": round(1000 * spent / turns, 3),
            "redis_cpu_ms_a_turn": round(1000 * (meter.cpu_seconds() - redis_before) / turns, 3),
            "worker_mb": round(max(resident_mb(child.pid) for child in children), 1),
            **grown(passes, passes_of(engine)),
        }
        trajectories = []
        for batch in client.batches(groups=1):
            trajectories += batch.trajectories
            batch.ack()
        return trajectories, {**rates_of([turns_of(one) for one in trajectories]), **costs}
    finally:
        processes.stop()


def passes_of(engine: str) -> dict[str, float]:
    """The batches of each kind that an SGLang server has computed so far; {} where it has no
    metrics.
    """
    answer = requests.get(f"{engine}/metrics", timeout=30)
    passes: dict[str, float] = {}
    for kind, number in PASSES.findall(answer.text if answer.ok else ""):
        passes[f"{kind}_batches"] = passes.get(f"{kind}_batches", 0.0) + float(number)
    return passes


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {kind: number - before.get(kind, 0.0) for kind, number in after.items()}


def pauses(episodes: list[list[Turn]]) -> dict[str, float]:
    """Seconds in which slots had no request, from one turn of an episode to its next."""
    between = sorted(later.at - turn.end for turns in episodes for turn, later in pairwise(turns))
    if not between:
        sys.exit("every episode ended with its first turn: raise --max-new-tokens")
    return {
        "between_turns_s_p50": round(between[len(between) // 2], 4),
        "between_turns_s_p99": round(between[int(0.99 * len(between))], 4),
    }


def empty_cache(engine: str) -> None:
    """Asks until the engine has emptied its prefix cache, which it does only while it is idle."""
    for _ in range(60):
        if requests.post(f"{engine}/flush_cache", timeout=60).ok:
            return
        time.sleep(0.5)
    sys.exit(f"{engine} does not empty its prefix cache: is something else using it?")


def line_of(pair: dict[str, Any]) -> str:
    each = ", ".join(f"{one['ratio']:.3f} ({one['first']} first)" for one in pair["rounds"])
    return f"{pair['slots']} slots, {pair['workers']} workers: {each}"


def as_table(results: dict[str, Any]) -> str:
    head = [
        "slots",
        "workers",
        "tokens/s",
        "bare client",
        "ratio",
        "steady",
        "cached",
        "between turns",
        "prefill batches",
        "worker ms",
        "Redis ms",
    ]
    return table(head, [row_of(pair) for pair in results["pairs"]])


def row_of(pair: dict[str, Any]) -> list[str]:
    """Medians of the rounds; of two that stand together, the second is the bare client's."""

    def of(side: str, name: str) -> float:
        return median(one[side].get(name, nan) for one in pair["rounds"])

    def both(name: str, form: str) -> str:
        pair = " / ".join(format(of(side, name), form) for side in ("rollq", "bare"))
        return pair.replace("nan", "-")

    return [
        str(pair["slots"]),
        str(pair["workers"]),
        f"{of('rollq', 'tokens_s'):.0f}",
        f"{of('bare', 'tokens_s'):.0f}",
        f"{pair['ratio']:.3f}",
        f"{pair['ratio_steady']:.3f}",
        f"{of('rollq', 'cached_share'):.1%}",
        both("between_turns_s_p50", ".4f"),
        both("prefill_batches", ".0f"),
        f"{of('rollq', 'worker_cpu_ms_a_turn'):.2f}",
        f"{of('rollq', 'redis_cpu_ms_a_turn'):.2f}",
    ]


if __name__ == "__main__":
    main()

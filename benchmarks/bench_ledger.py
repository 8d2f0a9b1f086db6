"""What the ledger costs: time in scripts in small and large runs, bytes of a job, commands of
workers, delivery.

Real Redis, real workers, episodes of tau2_2025:retail that a worker played before. Everything is
told by the server itself (redis_meter.py). Exit code 1 when a script is slower in a large run, a
job keeps too much, a turn takes more than 1.8 script calls, or a finished group is not handed out
at once.

    python benchmarks/bench_ledger.py [--jobs N ...] [--million] [--json]
"""

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from checks import Check, conclude, parser_for
from ledger_load import SIZE, Episode, Load
from processes import START_S, Processes
from redis_meter import RedisMeter
from tables import table

from rollq.client.client import Client
from rollq.client.consuming.consumer import Consumer
from rollq.errors import PullTimeout
from rollq.job import Job
from rollq.processes.embedded_redis import EmbeddedRedis
from rollq.trajectory import Trajectory

ENV, SPLIT = "tau2_2025:retail", "train"
TURNS, TOKENS = 8, 7000
"""The recorded episode that is nearest to this is the one that is played again."""
TASKS, CONCURRENCY = 24, 16
SMALL, LARGE = 16, (10_000, 100_000)
"""Jobs in the runs."""
MILLION = 1_000_000
UNITS = 30
"""Groups that are measured in each run."""
AT_REST, ACKNOWLEDGED = 50, 600
"""Groups whose bytes are measured."""
DELIVERIES = 40
IDLE_S = 20.0
MAX_GROWTH = 3.0
"""The script time of an operation in the largest run, over that in the smallest."""
MAX_OF_BLOBS = 0.75
"""The bytes of a running job, over those of its encoded events."""
MAX_OF_QUEUED = 0.2
"""The bytes of an acknowledged job, over those of a queued one."""
MAX_SCRIPTS_A_TURN = 1.8
MAX_OF_WAKE = 20.0
"""The median delivery, over the median time that Redis takes to wake a client that waits for a
list.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--jobs",
        type=int,
        nargs="+",
        default=list(LARGE),
        metavar="N",
        help="jobs in the large runs",
    )
    parser.add_argument(
        "--million", action="store_true", help="also a run of 1,000,000 jobs (0.7 GB, five minutes)"
    )
    args = parser.parse_args(argv)
    result: dict[str, Any] = {}
    with Processes() as processes:
        result["workers"], episode = measure_workers(processes)
    result["episode"] = {
        "turns": episode.turns,
        "tokens": episode.tokens,
        "bytes": sum(map(len, episode.blobs())),
    }
    result["bytes"] = measure_bytes(episode)
    result["delivery"] = measure_delivery(episode)
    sizes = [SMALL, *args.jobs, *([MILLION] if args.million else [])]
    result["script_us"] = {str(jobs): measure_scripts(episode, jobs) for jobs in sizes}
    report(result)
    return conclude(result, checks(result), args.json)


# -- workers


def measure_workers(processes: Processes) -> tuple[dict[str, float], Episode]:
    """What two workers send for a turn. Returns also the episode that is played again in the other
    parts.
    """
    engine_url = processes.engine(ENV, None)
    redis_url = processes.redis()
    workers = [processes.worker(redis_url, engine_url, CONCURRENCY, None) for _ in range(2)]
    meter = RedisMeter(redis_url)
    with Client(redis_url, run="played") as client:
        with meter.commands() as count:
            client.submit(
                Job(env=ENV, split=SPLIT, task=task, size=2) for task in range(TASKS // 2)
            )
            client.seal()
            until = time.monotonic() + START_S
            while (
                client.stats()["done"] < TASKS
            ):  # one script call each, which is little beside the workers' own
                time.sleep(1.0)
                if time.monotonic() > until:
                    sys.exit(f"the workers have not finished: {client.stats()}")
        played: list[Trajectory] = []
        for batch in client.batches(groups=1):
            played += batch.trajectories
            batch.ack()
    meter.close()
    for worker in workers:
        worker.stop()
    turns = sum(one.turns for one in played)
    found = {
        "turns": turns,
        "scripts_a_turn": count.scripts / turns,
        "commands_a_turn": count.total / turns,
    }
    return found, Episode(
        min(played, key=lambda one: abs(len(one.tokens) - TOKENS) / 500 + abs(one.turns - TURNS))
    )


# -- bytes at rest


def measure_bytes(episode: Episode) -> dict[str, float]:
    """Bytes a job adds to Redis: queued, then with all its turns but the end, then done. Of
    acknowledged jobs there are more, because they leave little.
    """
    with EmbeddedRedis() as server:
        load = Load(server.url, "bytes", episode)
        meter = RedisMeter(server.url)
        play_one_group(load)
        jobs = AT_REST * SIZE
        empty = meter.memory()
        found = {}
        ids = [job_id for group in load.fresh(AT_REST) for job_id in group]
        found["queued"] = (meter.memory() - empty) / jobs
        claims = [load.claim(job_id) for job_id in ids]
        for claim in claims:
            load.append(claim, load.blobs[:-1])
        found["running"] = (meter.memory() - empty) / jobs
        for claim in claims:
            load.complete(claim, load.blobs)
        found["done"] = (meter.memory() - empty) / jobs
        acknowledge(load, AT_REST)
        empty = meter.memory()
        for _ in range(ACKNOWLEDGED // AT_REST):
            for ids in load.fresh(AT_REST):
                for job_id in ids:
                    load.play(job_id, load.short)
            acknowledge(load, AT_REST)
        time.sleep(1.0)  # Redis gives buffers and half-empty tables back
        found["acknowledged"] = (meter.memory() - empty) / (ACKNOWLEDGED * SIZE)
        meter.close()
        load.close()
    return found


def play_one_group(load: Load) -> None:
    """Every script is loaded, every connection open and every index there."""
    for job_id in load.submit(load.group()):
        load.play(job_id, load.blobs)
    acknowledge(load, 1)


def acknowledge(load: Load, groups: int) -> None:
    with Client(load.url, run=load.ledger.run) as client, client.consumer() as consumer:
        for _ in range(groups):
            batch = consumer.next(1, timeout=60)
            assert batch
            batch.ack()


# -- delivery


def measure_delivery(episode: Episode) -> dict[str, float]:
    """Milliseconds from the last member's end to the batch, beside a bare BLPOP, and what an idle
    consumer sends.
    """
    with EmbeddedRedis() as server:
        wakes = deliver(blpop(server.url), push(server.url))
        load = Load(server.url, "delivery", episode)
        meter = RedisMeter(server.url)
        play_one_group(load)
        with Client(server.url, run="delivery") as client, client.consumer() as consumer:
            took = deliver(batches(consumer), groups(load))
            with meter.commands() as count, suppress(PullTimeout):
                consumer.next(1, timeout=IDLE_S)
        meter.close()
        load.close()
    return {
        "p50_ms": statistics.median(took) * 1000,
        "p99_ms": sorted(took)[int(len(took) * 0.99)] * 1000,
        "blpop_p50_ms": statistics.median(wakes) * 1000,
        "idle_consumer_commands_a_second": count.total / IDLE_S,
    }


def deliver(receive: Iterator[object], send: Iterator[Callable[[], object]]) -> list[float]:
    """Seconds from the call of each thing in `send` until a thread that waits for it has the next
    of `receive`.
    """
    sent: list[float] = []
    received: list[float] = []

    def take() -> None:
        for _ in range(DELIVERIES):
            next(receive)
            received.append(time.perf_counter())

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    for _ in range(DELIVERIES):
        time.sleep(random.uniform(0.2, 1.0))
        act = next(send)
        sent.append(time.perf_counter())
        act()
        while len(received) < len(sent):
            time.sleep(0.001)
    thread.join(60)
    return [end - begin for begin, end in zip(sent, received, strict=True)]


def blpop(url: str) -> Iterator[object]:
    client: Any = redis.Redis.from_url(url)
    while True:
        yield client.blpop(["bench:wake"], timeout=60)


def push(url: str) -> Iterator[Callable[[], object]]:
    client: Any = redis.Redis.from_url(url)
    while True:
        yield partial(client.lpush, "bench:wake", 1)


def batches(consumer: Consumer) -> Iterator[object]:
    while batch := consumer.next(1, timeout=60):
        yield batch
        batch.ack()


def groups(load: Load) -> Iterator[Callable[[], object]]:
    """Each group is played up to its last member's end, which is yielded."""
    while True:
        *others, last = load.submit(load.group())
        for job_id in others:
            load.play(job_id, load.short)
        claim = load.claim(last)
        load.append(claim, load.short[:-1])
        yield partial(load.complete, claim, load.short)


# -- script time


def measure_scripts(episode: Episode, jobs: int) -> dict[str, float]:
    """Median microseconds in scripts of each operation in a run of that many jobs, and the bytes of
    such a run.
    """
    with EmbeddedRedis() as server:
        meter = RedisMeter(server.url)
        if jobs > 1000:
            load = Load(server.url, "large", episode)
            play_one_group(load)
            empty = meter.memory()
            load.fill(jobs)
            found = {"bytes_a_job": (meter.memory() - empty) / jobs}
            loads = [load] * UNITS
        else:  # a new run each time, or it would grow
            loads = [Load(server.url, f"small-{n}", episode) for n in range(UNITS + 1)]
            found = {}
            play_one_group(loads.pop())  # Redis has compiled the scripts
            for load in loads:
                load.fill(jobs)
        units = [measure_operations(load, meter) for load in loads]
        meter.close()
        for load in set(loads):
            load.close()
    return found | {name: statistics.median(unit[name] for unit in units) for name in units[0]}


def measure_operations(load: Load, meter: RedisMeter) -> dict[str, float]:
    """One group, from its submission to its acknowledgement: microseconds in scripts, for one call
    of each.
    """
    us: dict[str, float] = {}

    def timed(name: str, calls: int, call: Callable[[], Any]) -> Any:
        before = meter.script_us()
        got = call()
        us[name] = (meter.script_us() - before) / calls
        return got

    ids = timed("submit", 1, lambda: load.submit(load.group()))
    claims = timed("claim", SIZE, lambda: [load.claim(job_id) for job_id in ids])
    for claim in claims:
        load.append(claim, load.blobs[:2])
    timed("append", SIZE, lambda: [load.append(claim, load.blobs[2:4], 2) for claim in claims])
    for claim in claims:
        load.append(claim, load.blobs[4:-1], 4)
    timed("complete", SIZE, lambda: [load.complete(claim, load.blobs) for claim in claims])
    with Client(load.url, run=load.ledger.run) as client, client.consumer() as consumer:
        batch = timed("take", 1, lambda: consumer.next(1, timeout=60))
        timed("ack", 1, batch.ack)
    return us


# -- the report


def report(result: dict[str, Any]) -> None:
    episode, workers, delivery = result["episode"], result["workers"], result["delivery"]
    print(
        f"an episode of {episode['turns']} turns and {episode['tokens']:,} tokens, "
        f"{episode['bytes']:,} bytes encoded\n"
    )
    print(
        table(
            ["a job at rest", "bytes"],
            [[name, f"{value:,.0f}"] for name, value in result["bytes"].items()],
        )
    )
    sizes = list(result["script_us"])
    base = result["script_us"][sizes[0]]
    rows = [
        [
            name,
            f"{base[name]:.0f}",
            *(f"{result['script_us'][size][name] / base[name]:.2f}" for size in sizes[1:]),
        ]
        for name in base
    ]
    print("\nscript time: microseconds, and how many times that in larger runs")
    print(table(["", f"{sizes[0]} jobs", *(f"{int(size):,}" for size in sizes[1:])], rows))
    print("\ntwo workers")
    print(
        table(
            ["", ""], [[name.replace("_", " "), f"{value:.2f}"] for name, value in workers.items()]
        )
    )
    print("\ndelivery")
    print(
        table(
            ["", ""], [[name.replace("_", " "), f"{value:.2f}"] for name, value in delivery.items()]
        )
    )


def checks(result: dict[str, Any]) -> list[Check]:
    sizes = list(result["script_us"].values())
    used = result["bytes"]
    growth = max((sizes[-1][name] / value, name) for name, value in sizes[0].items())
    delivery = result["delivery"]
    return [
        Check(f"time in scripts, largest run over smallest ({growth[1]})", growth[0], MAX_GROWTH),
        Check(
            "bytes of a running job, over its events'",
            used["running"] / result["episode"]["bytes"],
            MAX_OF_BLOBS,
        ),
        Check(
            "bytes of an acknowledged job, over a queued one's",
            used["acknowledged"] / used["queued"],
            MAX_OF_QUEUED,
        ),
        Check("script calls a turn", result["workers"]["scripts_a_turn"], MAX_SCRIPTS_A_TURN),
        Check(
            "delivery of a group, over a bare BLPOP",
            delivery["p50_ms"] / delivery["blpop_p50_ms"],
            MAX_OF_WAKE,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())

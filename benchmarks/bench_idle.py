"""What do idle workers ask of Redis, and does it depend on the runs that are finished?

A real Redis and real workers with nothing to do; first no run, then many finished ones. Then 16
reapers of workers that share this process, without Celery. Counted are the commands that clients
send (a script counts once) and the connections that they open. Compared are the commands with and
without finished runs.

Then one reaper of this process with many active runs, of which each has a message at the broker.
Measured is its CPU and that of Redis.

    python benchmarks/bench_idle.py [--runs 1000] [--active 2000] [--seconds 15] [--workers 4]
        [--json]
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from checks import Check, conclude, parser_for
from processes import Processes
from redis_meter import RedisMeter
from tables import table

from rollq.client.producing.broker import Broker
from rollq.job import Job
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import LiveWorker
from rollq.servers.connection import connect
from rollq_worker.process.reaper import Reaper

SETTLE_S = 10.0
"""Seconds until finished runs have left the list of active ones and new workers are at rest."""
REAPERS = 16
MOST = 2.0
"""Finished runs may cost an idle worker this many times the commands that it sends without any."""
MOST_CPU = 0.05
"""Share of a core that looking after the active runs may take of Redis, and of a worker."""
BROKER = ("brpop", "publish", "smembers", "llen", "lpush", "multi", "exec", "sadd")
"""Commands of Celery and kombu; the others are the ledger's."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="finished runs (%(default)s)")
    parser.add_argument("--active", type=int, default=2000, help="active runs (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="seconds of each measurement (%(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="workers, beside a single one (%(default)s)"
    )
    args = parser.parse_args(argv)
    with Processes() as processes:
        rows = measure(processes, args.workers, args.runs, args.seconds)
        active = look_after(processes.redis(), args.active, args.seconds)
    alone = {row["finished runs"]: row["all"] for row in rows if row["who"] == "1 worker"}
    print("commands and connections a second\n")
    print(table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows]))
    growth = Check(
        f"an idle worker's commands, {args.runs:,} finished runs over none",
        alone[args.runs] / alone[0],
        MOST,
    )
    shares = [
        Check(f"{args.active:,} active runs: {who}'s share of a core", share, MOST_CPU)
        for who, share in active.items()
    ]
    return conclude({"rows": rows, "active": active}, [growth, *shares], args.json)


def measure(processes: Processes, workers: int, runs: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each number of workers, without finished runs and with them, and one for the
    reapers alone.
    """
    url = processes.redis()
    engine = processes.engine("shop", None)

    def row(who: str, finished: int) -> dict[str, Any]:
        time.sleep(SETTLE_S)
        return {"who": who, "finished runs": finished, **rates(url, seconds)}

    first = processes.worker(url, engine, 4, None)
    rows = [row("1 worker", 0)]
    others = [processes.worker(url, engine, 4, None) for _ in range(workers - 1)]
    rows.append(row(f"{workers} workers", 0))
    finish_runs(url, runs)
    rows.append(row(f"{workers} workers", runs))
    for child in others:
        child.stop()
    rows.append(row("1 worker", runs))
    first.stop()
    with reapers(url):
        rows.append(row(f"{REAPERS} reapers", runs))
    return rows


def finish_runs(url: str, runs: int) -> None:
    """Runs in which no job is left."""
    with connect(url) as client:
        for number in range(runs):
            run = f"finished-{number}"
            ledger = Ledger(client, run)
            ledger.submit([Job(run=run, group="g", env="shop", task=0)], send_in_s=3600.0)
            DeadLetters(client, run).cancel(f"{run}/g/0")
            ledger.seal()


def look_after(url: str, runs: int, seconds: float) -> dict[str, float]:
    """Shares of a core that Redis and a reaper take for so many active runs."""
    with connect(url) as client:
        for number in range(runs):
            run = f"active-{number}"
            job = Job(run=run, group="g", env="shop", task=0)
            Ledger(client, run).submit([job], send_in_s=0)
    with reapers(url, 1):
        time.sleep(SETTLE_S + runs / 300)  # until all are sent
        meter = RedisMeter(url)
        began = time.monotonic()
        redis = meter.cpu_seconds()
        own = time.process_time()
        time.sleep(seconds)
        passed_s = time.monotonic() - began
        shares = {
            "Redis": (meter.cpu_seconds() - redis) / passed_s,
            "a worker": (time.process_time() - own) / passed_s,
        }
        meter.close()
    return shares


@contextmanager
def reapers(url: str, count: int = REAPERS) -> Iterator[None]:
    """Reapers of as many workers, each with connections of its own."""
    found = []
    for number in range(count):
        worker = LiveWorker(
            name=f"w{number}",
            queues=("rollq",),
            tokenizer="t",
            template="c",
            engine="ready",
            slots=4,
            busy=0,
        )
        found.append(Reaper(connect(url), Broker(url), lambda worker=worker: worker))
    for reaper in found:
        reaper.start()
    yield
    for reaper in found:
        reaper.stop()
    for reaper in found:
        reaper.join(60.0)


def rates(url: str, seconds: float) -> dict[str, float]:
    meter = RedisMeter(url)
    connections = meter.connections()
    with meter.commands() as sent:
        time.sleep(seconds)
    opened = meter.connections() - connections - 1  # the count's own
    meter.close()
    broker = sum(sent.by_name[name] for name in BROKER)
    return {
        "all": sent.total / seconds,
        "ledger": (sent.total - broker) / seconds,
        "scripts": sent.scripts / seconds,
        "Celery": broker / seconds,
        "connections": opened / seconds,
    }


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())

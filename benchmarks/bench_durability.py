"""What does a confirmed write cost, compared with one that Redis only has in its memory?

Real servers on loopback, with files in one folder: one that writes to its disk once a second, with
a replica, and one that writes before every answer. Measured are a submission of a group of 8 and an
append of one turn: the median of calls that follow one another, and the calls a second of 16
threads, which share a flush. The disk decides about fsync, so compare on your own.

    python benchmarks/bench_durability.py [--calls 200] [--dir DIR] [--json]
"""

import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from checks import Check, conclude, parser_for
from tables import ms, table

from rollq.events import Finish, Observed, Sampled, VersionSpan
from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.processes.child import Child
from rollq.processes.embedded_redis import HOST, command, free_port
from rollq.servers.connection import connect
from rollq.servers.durability import Durability
from rollq.trajectory import Header
from rollq.wire.codec import encode_header
from rollq.wire.events import encode_event

SIZE, THREADS = 8, 16
START_S = 30.0
MOST_FOR_REPLICA = 10.0
"""A submission that a replica on this machine confirms may take this many times an unconfirmed one.
"""
SAMPLED, REPLIED = 120, 600
"""Tokens of a turn."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--calls", type=int, default=200, help="calls of each measurement (%(default)s)"
    )
    parser.add_argument(
        "--dir", type=Path, help="a folder on the disk in question (a temporary one)"
    )
    args = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(dir=args.dir, prefix="rollq-durability-") as scratch,
        servers(Path(scratch)) as urls,
    ):
        rows = [row(*mode, args.calls) for mode in modes(*urls)]
    first = rows[0]["submit_s"]
    ratio = next(found["submit_s"] for found in rows if found["durability"] == "replica") / first
    rate = f"submits a second, {THREADS} threads"
    head = ["durability", "server writes", "submit, ms", "ratio", rate, "append, ms"]
    print(table(head, [_cells(found, first) for found in rows]))
    replica = Check(
        "a submission that a replica confirms, over an unconfirmed one", ratio, MOST_FOR_REPLICA
    )
    return conclude({"rows": rows}, [replica], args.json)


def modes(second: str, always: str) -> list[tuple[str, str, Durability]]:
    """Address, how often its server writes to its disk, and durability."""
    return [
        (second, "once a second", Durability.ASYNC),
        (second, "once a second", Durability.REPLICA),
        (always, "always", Durability.ASYNC),
        (always, "always", Durability.FSYNC),
    ]


@contextmanager
def servers(folder: Path) -> Iterator[tuple[str, str]]:
    """Addresses of the server that has a replica and of the one that always writes to its disk."""
    children: list[Child] = []

    def start(name: str, fsync: str, *settings: str) -> int:
        port = free_port()
        (folder / name).mkdir()
        line = [*command(port, folder / name, fsync), *settings]
        children.append(Child(name, line, log=folder / f"{name}.log"))
        return port

    try:
        second, always = start("second", "everysec"), start("always", "always")
        replica = start("replica", "everysec", "--replicaof", HOST, str(second))
        until = time.monotonic() + START_S
        while not (
            _answers(second) and _answers(always) and _answers(replica, "master_link_status:up")
        ):
            if time.monotonic() > until:
                sys.exit("\n".join(child.how_it_ended() for child in children))
            time.sleep(0.05)
        yield f"redis://{HOST}:{second}/0", f"redis://{HOST}:{always}/0"
    finally:
        for child in reversed(children):
            child.stop()


def _answers(port: int, line: str = "") -> bool:
    try:
        with redis.Redis(port=port) as client:
            found: Any = client.info("replication")
    except redis.ConnectionError:
        return False
    name, _, value = line.partition(":")
    return not line or found.get(name) == value


def row(url: str, writes: str, durability: Durability, calls: int) -> dict[str, Any]:
    run = f"{durability}-{writes.replace(' ', '-')}"
    with connect(url) as client:
        ledger = Ledger(client, run, durability)
        job = next(iter(submitted(ledger, 0).new))
        claim = ledger.claim(job, worker="bench", token="t", tokenizer_hash="a", template_hash="b")
        assert isinstance(claim, Claim)
        submit_s = median(lambda number: submitted(ledger, number + 1), calls)
        ledger.append(job, claim.lease, 0, [encode_header(Header(attempt=1, worker="bench"), job)])
        turns = [turn(number, job) for number in range(calls)]
        append_s = median(
            lambda number: ledger.append(job, claim.lease, 1 + 2 * number, turns[number]), calls
        )
        with ThreadPoolExecutor(THREADS) as pool:
            began = time.perf_counter()
            list(
                pool.map(lambda number: submitted(ledger, number), range(calls + 1, calls * 5 + 1))
            )
            rate = calls * 4 / (time.perf_counter() - began)
    return {
        "durability": durability.value,
        "writes": writes,
        "submit_s": submit_s,
        "append_s": append_s,
        "submits_a_second": rate,
    }


def submitted(ledger: Ledger, group: int) -> Any:
    jobs = [
        Job(run=ledger.run, group=f"g{group}", sample=n, size=SIZE, env="shop", task=group)
        for n in range(SIZE)
    ]
    return ledger.submit(jobs)


def turn(number: int, job: str) -> list[bytes]:
    """What the model said and what came back, encoded."""
    ids, replied = (
        array("I", range(number, number + SAMPLED)),
        array("I", range(number, number + REPLIED)),
    )
    spans = [VersionSpan("1", 0, SAMPLED)]
    logprobs = array("f", [-0.5] * SAMPLED)
    sampled = Sampled(
        turn=number, ids=ids, logprobs=logprobs, versions=spans, finish=Finish.STOP, text="a" * 450
    )
    message, reply = {"role": "assistant", "content": "a"}, {"role": "tool", "content": "b" * 2000}
    observed = Observed(turn=number, message=message, actions=[], replies=[reply], ids=replied)
    return [encode_event(event, job) for event in (sampled, observed)]


def median(call: Callable[[int], object], calls: int) -> float:
    """Seconds."""
    took = []
    for number in range(calls):
        began = time.perf_counter()
        call(number)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _cells(found: dict[str, Any], first: float) -> list[str]:
    seconds = found["submit_s"]
    numbers = [
        ms(seconds),
        f"{seconds / first:.1f}",
        f"{found['submits_a_second']:.0f}",
        ms(found["append_s"]),
    ]
    return [found["durability"], found["writes"], *numbers]


if __name__ == "__main__":
    sys.exit(main())

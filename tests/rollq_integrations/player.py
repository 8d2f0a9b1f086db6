"""Plays the jobs of a run in place of workers: short episodes, each with tokens and a reward of its
own.
"""

import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from rollq.events import Event
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq.wire.events import encode_event
from tests.rollq.samples import claim, closed, journal, observed, prompt, sampled

SAMPLED = 5
"""Sampled tokens of an episode."""


def episode(job_id: str, version: str) -> list[Event]:
    """Always the same for the same job, in any run."""
    rng = random.Random(zlib.crc32(job_id.partition("/")[2].encode()))
    first, second = rng.sample(range(10, 100), 3), rng.sample(range(10, 100), 2)
    return [
        prompt(*rng.sample(range(10, 100), 4)),
        sampled(0, *first, version=version),
        observed(0),
        sampled(1, *second, version=version),
        observed(1, done=True),
        closed(float(rng.random() < 0.5)),
    ]


def play_job(ledger: Ledger, job_id: str, version: str = "1") -> None:
    lease = claim(ledger, job_id, f"token-{job_id}").lease
    *some, end = episode(job_id, version)
    index = journal(ledger, job_id, lease, some)
    blob = encode_event(end, job_id)
    ledger.complete(job_id, lease, index, [blob], turns=2, sampled_tokens=SAMPLED, total_tokens=13)


def queued(ledger: Ledger) -> list[str]:
    return [job_id.decode() for job_id in ledger.redis.zrange(ledger.keys.queued, 0, -1)]


@contextmanager
def playing(redis_url: str, run: str = "r") -> Iterator[None]:
    """Plays every job that is submitted meanwhile, under the version that was published last."""
    over = threading.Event()

    def play() -> None:
        ledger = Ledger(connect(redis_url), run)
        while not over.wait(0.01):
            for job_id in queued(ledger):
                play_job(
                    ledger,
                    job_id,
                    (ledger.redis.hget(ledger.keys.meta, "version") or b"1").decode(),
                )
        ledger.redis.close()

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)

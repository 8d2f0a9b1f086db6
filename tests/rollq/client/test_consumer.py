"""Consumers as real processes that share a run: no overlap, and what a dead one held goes to the next, once, oldest
first."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rollq.errors import NotHeld
from rollq.ledger.ledger import Ledger
from tests.rollq.samples import group, is_over, play, reader

CONSUMER = """
import json, sys
from rollq.client.client import Client
from rollq.errors import NotHeld

url, hold_s, groups = sys.argv[1:]
with Client(url, run="r", hold_s=float(hold_s)) as client:
    for batch in client.batches(groups=int(groups)):
        print(json.dumps([group.id for group in batch.groups]), flush=True)
        sys.stdin.readline()  # the training step takes as long as the other end likes
        try:
            batch.ack()
            batch.ack()  # as often as one likes
            print("acked", flush=True)
        except NotHeld as e:
            print(f"refused: {e}", flush=True)
"""
HOLD_S = 12.0
"""Longer than a machine may stand still; tests end a hold that nobody renews, and never wait for its end."""


class Consumer:
    """One process; its training steps end when they are told to, or at once when nobody listens."""

    def __init__(self, url: str, groups: int, *, steps: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, url, str(HOLD_S), str(groups)],
            stdin=subprocess.PIPE if steps else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def batch(self) -> list[str]:
        """The groups of the next batch; empty when the run is over."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return list(json.loads(line)) if line else []

    def ack(self, said: str = "acked\n") -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().startswith(said)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def lines(self) -> list[Any]:
        """All that it says until it ends: the groups of its batches, in pairs with whether it acknowledged them."""
        said, _ = self.process.communicate(timeout=60)
        return [line if line == "acked" else json.loads(line) for line in said.splitlines()]


@pytest.fixture
def consumers() -> Iterator[list[Consumer]]:
    started: list[Consumer] = []
    yield started
    for consumer in started:
        if consumer.process.poll() is None:
            consumer.process.kill()
        for pipe in (consumer.process.stdin, consumer.process.stdout):
            if pipe and not pipe.closed:
                pipe.close()
        consumer.process.wait(60)


def finish(ledger: Ledger, count: int) -> list[str]:
    """So many groups, played and sealed."""
    names = [f"g{number:02}" for number in range(count)]
    for name in names:
        ledger.submit(group(name))
        for sample in range(2):
            play(ledger, f"r/{name}/{sample}")
    ledger.seal()
    return names


def renewed(ledger: Ledger, name: str) -> None:
    """Waits until somebody has renewed the hold of this group."""
    held = ledger.keys.held("train")
    was, until = ledger.redis.zscore(held, name), time.monotonic() + 60
    while ledger.redis.zscore(held, name) <= was:
        assert time.monotonic() < until
        time.sleep(0.02)


def run_out(ledger: Ledger, *names: str) -> None:
    """The holds of these groups, which nobody renews any more."""
    for name in names:
        ledger.redis.zadd(ledger.keys.held("train"), {name: 1}, xx=True)


def test_what_a_killed_one_held_comes_again_oldest_first(
    redis_url: str, ledger: Ledger, consumers: list[Consumer]
) -> None:
    finish(ledger, 6)
    consumers.append(victim := Consumer(redis_url, 2, steps=True))
    assert victim.batch() == ["g00", "g01"]
    consumers.append(other := Consumer(redis_url, 2, steps=True))
    assert other.batch() == ["g02", "g03"]
    token = ledger.redis.hget(ledger.keys.group("g00"), "token").decode()
    victim.kill()
    run_out(ledger, "g00", "g01")
    other.ack()
    assert other.batch() == ["g00", "g01"]
    with pytest.raises(NotHeld, match="r/g00"):
        ledger.ack(token, ["r/g00/0"])  # if it had only been slow
    other.ack()
    assert other.batch() == ["g04", "g05"]
    other.ack()
    assert other.batch() == []
    stats = reader(ledger).stats()
    assert (stats["delivered"], stats["duplicates"], stats["redelivered"]) == (12, 0, 2)
    assert is_over(ledger)


def test_a_slow_one_keeps_its_batch(redis_url: str, ledger: Ledger, consumers: list[Consumer]) -> None:
    finish(ledger, 4)
    consumers.append(slow := Consumer(redis_url, 2, steps=True))
    assert slow.batch() == ["g00", "g01"]
    consumers.append(other := Consumer(redis_url, 2, steps=True))
    assert other.batch() == ["g02", "g03"]
    other.ack()
    renewed(ledger, "g00")
    slow.ack()
    assert slow.batch() == other.batch() == []
    stats = reader(ledger).stats()
    assert (stats["delivered"], stats["duplicates"], stats["redelivered"]) == (8, 0, 0)


def test_a_frozen_one_is_told_that_its_batch_is_anothers(
    redis_url: str, ledger: Ledger, consumers: list[Consumer]
) -> None:
    finish(ledger, 2)
    consumers.append(frozen := Consumer(redis_url, 2, steps=True))
    assert frozen.batch() == ["g00", "g01"]
    os.kill(frozen.process.pid, signal.SIGSTOP)
    run_out(ledger, "g00", "g01")
    consumers.append(other := Consumer(redis_url, 2, steps=True))
    assert other.batch() == ["g00", "g01"]
    os.kill(frozen.process.pid, signal.SIGCONT)
    frozen.ack("refused: group r/g0")
    other.ack()
    assert frozen.batch() == other.batch() == []
    stats = reader(ledger).stats()
    assert (stats["delivered"], stats["duplicates"], stats["redelivered"]) == (4, 0, 2)


def test_three_share_a_run_and_one_dies(redis_url: str, ledger: Ledger, consumers: list[Consumer]) -> None:
    names = finish(ledger, 60)
    consumers += [Consumer(redis_url, 2, steps=number == 0) for number in range(3)]
    victim, *others = consumers
    for _ in range(random.randint(0, 2)):
        if victim.batch():
            victim.ack()
    lost = victim.batch()  # may have come too late for one
    victim.kill()
    run_out(ledger, *lost)
    acked: Counter[str] = Counter()
    for consumer in others:
        said = consumer.lines()
        assert said[1::2] == ["acked"] * (len(said) // 2)
        assert all(batch == sorted(batch) for batch in said[::2])
        acked.update(name for batch in said[::2] for name in batch)
    assert set(acked.values()) == {1}
    assert set(lost) <= set(acked) <= set(names)
    stats = reader(ledger).stats()
    assert (stats["delivered"], stats["groups_acked"], stats["duplicates"]) == (120, 60, 0)
    assert stats["redelivered"] == len(lost)

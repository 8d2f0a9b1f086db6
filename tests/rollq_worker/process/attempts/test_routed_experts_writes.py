"""Routed experts of an attempt: no event is in Redis without its part, with two threads that write and a Redis that
forgets."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rollq.errors import JournalConflict
from rollq.events import Event, Sampled
from rollq.ledger.ledger import Ledger
from rollq.ledger.routed_experts import parts_kept
from rollq.token_stats import TokenStats
from rollq.trajectory import Header, Trajectory
from rollq.trajectory_extras import Extra
from rollq.wire.events import decode_event
from rollq_worker.process.attempts import attempt as attempt_module
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.leases import Leases
from tests.rollq import samples
from tests.rollq.routed_experts import ASKED, parts

JOB = "r/g/0"
EVENTS = samples.events()
HEADER = Header(attempt=1)


@pytest.fixture
def attempt(ledger: Ledger) -> Iterator[Attempt]:
    ledger.submit(samples.group(size=1, routed_experts=ASKED))
    with Leases(threading.Event()).hold(ledger, samples.claim(ledger, JOB)) as held:
        held.open(HEADER)
        yield held


def play(attempt: Attempt, events: Sequence[Event], kept: Iterator[Extra]) -> None:
    for event in events:
        if isinstance(event, Sampled):
            attempt.keep_routed_experts(next(kept))
        attempt.append(event)


def before(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, script: str, act: Callable[[], object]) -> None:
    """`act` once, right before the next call of that script."""
    call, acts = ledger.scripts.call, [act]

    def acting(name: str, *args: Any, **options: Any) -> Any:
        if name == script and acts:
            acts.pop()()
        return call(name, *args, **options)

    monkeypatch.setattr(ledger.scripts, "call", acting)


def sampled_and_parts(ledger: Ledger) -> tuple[int, int]:
    """The numbers of sampled events and of parts that are in Redis."""
    events = [decode_event(blob, JOB) for blob in ledger.journal(JOB)[1:]]
    return sum(isinstance(event, Sampled) for event in events), parts_kept(ledger.scripts, JOB)


def test_what_is_sampled_while_another_thread_writes_waits_for_its_part(
    attempt: Attempt, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = parts(EVENTS)
    play(attempt, EVENTS[:2], kept)
    monkeypatch.setattr(attempt_module, "HELD_BACK_S", -1.0)
    before(ledger, monkeypatch, "keep_experts", lambda: play(attempt, [samples.sampled(0)], kept))
    attempt.write_behind()
    assert sampled_and_parts(ledger) == (1, 1)
    attempt.write_behind()
    assert sampled_and_parts(ledger) == (2, 2)


@pytest.mark.parametrize("script", ["append", "complete"])
def test_a_redis_that_forgets_gets_no_event_again_without_its_part(
    attempt: Attempt, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """Redis comes back as it was before the first turn, right behind the parts of the second one."""

    def forget() -> None:
        ledger.redis.delete(ledger.keys.routed_experts(JOB), ledger.keys.journal(JOB))

    *events, second, end, closed = EVENTS
    play(attempt, events, kept := parts(EVENTS))
    before(ledger, monkeypatch, script, forget)
    with pytest.raises(JournalConflict, match="Redis has 0 parts of the 2 that were written"):
        if script == "complete":
            play(attempt, [second, end], kept)
            of = Trajectory(job=attempt.job, header=HEADER, events=[*EVENTS[:-1], closed])
            attempt.complete(of, TokenStats())
        else:
            play(attempt, [second, samples.observed(1)], kept)
    assert sampled_and_parts(ledger) == (0, 0)
    attempt.release()
    assert sampled_and_parts(ledger) == (0, 0)

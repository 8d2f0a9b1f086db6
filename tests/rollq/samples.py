"""Jobs, episodes and short ways through the ledger that several tests share."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import redis

from rollq.events import Closed, Event, Finish, Observed, Prompt, Sampled, Stop, VersionSpan
from rollq.job import Job, Purpose
from rollq.ledger.job_extras import save_extras
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Claim
from rollq.trajectory import Header, Trajectory
from rollq.trajectory_extras import Extra
from rollq.wire.codec import decode_job, encode_header, encode_job, read_trajectory
from rollq.wire.events import encode_event


def job(sample: int = 0, group: str = "g", run: str = "r", **changes: object) -> Job:
    return Job(
        **{
            "run": run,
            "group": group,
            "sample": sample,
            "env": "shop",
            "task": 1,
            "size": 2,
            **changes,
        }
    )


def group(name: str = "g", size: int = 2, **changes: object) -> list[Job]:
    first = job(0, name, size=size, **changes)
    return [replace(first, sample=sample) for sample in range(first.members)]


def ids(*values: int) -> array[int]:
    return array("I", values)


def prompt(*tokens: int) -> Prompt:
    return Prompt(
        ids=ids(*(tokens or (1, 2, 3))),
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        tools=[{"type": "function", "function": {"name": "look"}}],
        at=1.0,
    )


def sampled(
    turn: int = 0, *tokens: int, version: str = "1", finish: Finish = Finish.STOP
) -> Sampled:
    tokens = tokens or (7, 8)
    logprobs = array("f", [-0.5] * len(tokens))
    spans = [VersionSpan(version, 0, len(tokens))]
    return Sampled(
        turn=turn,
        ids=ids(*tokens),
        logprobs=logprobs,
        versions=spans,
        finish=finish,
        text="hm",
        at=2.0,
    )


def observed(turn: int = 0, *tokens: int, done: bool = False) -> Observed:
    return Observed(
        turn=turn,
        message={"role": "assistant", "content": "hm"},
        actions=[{"name": "look", "arguments": {"at": "it"}}],
        replies=[{"role": "tool", "content": "It is red."}],
        ids=ids(*(tokens or (4, 5))),
        done=done,
        at=3.0,
    )


def closed(reward: float = 1.0, stop: Stop = Stop.DONE) -> Closed:
    return Closed(stop=stop, reward=reward, info={"why": "it is red"}, at=4.0)


def events(reward: float = 1.0, version: str = "1") -> list[Event]:
    turns = [
        sampled(0, version=version),
        observed(0),
        sampled(1, version=version),
        observed(1, done=True),
    ]
    return [prompt(), *turns, closed(reward)]


def trajectory(reward: float = 1.0, of: Job | None = None) -> Trajectory:
    return Trajectory(
        job=of or job(), header=Header(attempt=1, worker="w", at=1.0), events=events(reward)
    )


def encoded(of: Trajectory) -> list[bytes]:
    """The job's blob and the journal's."""
    events = [encode_event(event, of.job.id) for event in of.events]
    return [encode_job(of.job), encode_header(of.header, of.job.id), *events]


def decoded(blobs: Sequence[bytes]) -> Trajectory:
    job, header, *events = blobs
    return read_trajectory(decode_job(job), header, events)


def reader(ledger: Ledger) -> LedgerReader:
    """Of the same run."""
    return LedgerReader(ledger.redis, ledger.run)


def is_over(ledger: Ledger, purpose: Purpose = Purpose.TRAIN) -> bool:
    """No more groups come, and all that came are acknowledged or dropped."""
    standing = reader(ledger).standing(purpose)
    return standing.sealed and not standing.unacknowledged


def reap(ledger: Ledger) -> list[str]:
    """As a reaper does that was never cut off from Redis. Returns the jobs to send."""
    with suppress(redis.ResponseError):  # Redis takes no writes, or the key is damaged
        ledger.redis.hset(ledger.keys.meta, mapping={"beat": ledger.scripts.now(), "grace": 0})
    return [message.job_id for message in ledger.reap()]


def claim(ledger: Ledger, job_id: str, token: str = "token") -> Claim:
    found = ledger.claim(job_id, worker="w", token=token)
    assert isinstance(found, Claim), found
    return found


def journal(ledger: Ledger, job_id: str, lease: str, some: Sequence[Event]) -> int:
    """Header and events; returns the next index."""
    ledger.append(job_id, lease, 0, [encode_header(Header(attempt=1, worker="w"))])
    for index, event in enumerate(some, 1):
        ledger.append(job_id, lease, index, [encode_event(event, job_id)])
    return len(some) + 1


def play(
    ledger: Ledger, job_id: str, reward: float = 1.0, version: str = "1", **extras: Extra
) -> str:
    """The whole episode, sampled by weights of that version, with these arrays beside it; returns
    its lease.
    """
    lease = claim(ledger, job_id, f"token-{job_id}-{reward}").lease
    *some, end = events(reward, version)
    index = journal(ledger, job_id, lease, some)
    blob = encode_event(end, job_id)
    if extras:
        save_extras(ledger.scripts, job_id, lease, extras)
    ledger.complete(job_id, lease, index, [blob], turns=2, sampled_tokens=4, total_tokens=11)
    return lease

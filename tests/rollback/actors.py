"""Producers, workers and trainers of one run: each does one thing at a time, and lives on when
Redis comes back with less.

A player writes its name and a sum of all tokens before into every turn. So a reader sees when a
trajectory was put together from two attempts.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import random
import threading
import uuid
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rollq import Client
from rollq.batch import Batch
from rollq.errors import ContractError, Fenced, Gap, NotHeld, PullTimeout
from rollq.events import Closed, Event, Finish, Observed, Prompt, Sampled, Stop, VersionSpan
from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.servers.connection import connect
from rollq.token_stats import TokenStats
from rollq.trajectory import Header, Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS
from rollq_worker.process.attempts.attempt import Attempt
from tests.rollq.routed_experts import ASKED, routed

RUN = "rollback"
SIZE = 2
TURNS = 2
WAIT_S = 60.0
"""Bound of every wait, far above what is needed."""


def group(number: int, source: str) -> list[Job]:
    job = Job(run=RUN, group=f"{source}.{number}", env="shop", task=number, size=SIZE)
    asked = ASKED if number % 3 else {}
    return [replace(job, sample=n, routed_experts=asked) for n in range(SIZE)]


class Gated:
    """Jobs of groups, each of which is given out when it is allowed. It may be read again from its
    beginning.
    """

    def __init__(self, groups: Sequence[Sequence[Job]]) -> None:
        self.groups = groups
        self.allowed = 0
        self.asked = 0
        """The group that the reader waits for, counted from 1."""
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[Job]:
        for number, jobs in enumerate(self.groups, 1):
            with self.changed:
                self.asked = number
                self.changed.notify_all()
                self.changed.wait_for(lambda number=number: self.allowed >= number)
            yield from jobs

    def allow(self, number: int) -> None:
        with self.changed:
            self.allowed = max(self.allowed, number)
            self.changed.notify_all()

    def wait_until_asked(self, beyond: int, ended: threading.Event) -> None:
        """Until the reader waits for a group that is not allowed, or has ended."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked > beyond or ended.is_set(), WAIT_S), (
                "submit hangs"
            )


class Producer:
    """`Client.submit` with a source, in a thread; it gets one group at a time."""

    def __init__(self, url: str, groups: Sequence[Sequence[Job]]) -> None:
        self.groups = groups
        self.client = Client(url, run=RUN)
        self.errors: list[Exception] = []
        self.entered = 0
        self.start()

    def start(self) -> None:
        """The same command again. What was entered before is not waited for."""
        self.source, self.ended = Gated(self.groups), threading.Event()
        self.source.allow(self.entered)
        self.thread = threading.Thread(
            target=self._submit, args=(self.source, self.ended), daemon=True
        )
        self.thread.start()

    def _submit(self, source: Gated, ended: threading.Event) -> None:
        try:
            self.client.submit(source, source="tasks")
        except Exception as e:
            self.errors.append(e)
        finally:
            with source.changed:
                ended.set()
                source.changed.notify_all()

    @property
    def done(self) -> bool:
        return self.ended.is_set() and not self.errors

    def step(self) -> str:
        if self.ended.is_set():
            if not self.errors:
                return ""
            error = self.errors.pop()
            if not isinstance(error, Gap):
                raise error
            self.start()  # "the same command does"
            return "submit again"
        self.entered = min(self.entered + 1, len(self.groups))
        self.source.allow(self.entered)
        self.source.wait_until_asked(self.entered, self.ended)
        return "submit"

    def close(self) -> None:
        self.source.allow(len(self.groups))
        self.thread.join(WAIT_S)
        self.client.close()


class SourcelessProducer:
    """Submits its groups one by one and keeps no account. When it is told to, it submits all of
    them again.
    """

    def __init__(self, url: str, groups: Sequence[Sequence[Job]]) -> None:
        self.groups = groups
        self.client = Client(url, run=RUN)
        self.entered = 0

    @property
    def done(self) -> bool:
        return self.entered == len(self.groups)

    def step(self) -> str:
        if self.done:
            return ""
        self.client.submit(self.groups[self.entered])
        self.entered += 1
        return "submit"

    def repeat(self) -> None:
        for jobs in self.groups:
            self.client.submit(jobs)

    def close(self) -> None:
        self.client.close()


class Player:
    """A worker's way through the ledger, one write a step: the worker's own `Attempt` without what
    is played.
    """

    writers = 0
    """Attempts that were ever begun, by all players."""

    def __init__(self, url: str, name: str, rng: random.Random) -> None:
        self.name, self.rng = name, rng
        self.ledger = Ledger(connect(url), RUN)
        self.attempt: Attempt | None = None
        self.header = Header(attempt=1)
        self.events: list[Event] = []
        self.writer = 0
        self.fenced = 0
        self.wrong: list[str] = []

    def step(self) -> str:
        try:
            return self._claim() if self.attempt is None else self._go_on(self.attempt)
        except Fenced:
            self.fenced += 1
            self.attempt = None
            return "fenced"
        except ContractError as e:
            self.wrong.append(f"{self.name}: {e}")
            self.attempt = None
            return "broken"

    @property
    def job_id(self) -> str:
        return self.attempt.job.id if self.attempt else ""

    def _claim(self) -> str:
        """The broker is at its worst: it gives out every queued job at any time."""
        queued = self.ledger.redis.zrange(self.ledger.keys.queued, 0, -1)
        if not queued:
            return ""
        job_id = self.rng.choice(queued).decode()
        found = self.ledger.claim(
            job_id, worker=self.name, token=uuid.uuid4().hex, tokenizer_hash="t", template_hash="c"
        )
        if not isinstance(found, Claim):
            return f"refused: {found.reason}"
        Player.writers += 1
        self.writer = Player.writers
        self.attempt = Attempt(self.ledger, found, threading.Event(), lambda: 0.0)
        if found.journal:
            self.header, self.events = self.attempt.resume()
            return "resume"
        self.header, self.events = Header(attempt=found.attempt, worker=self.name), []
        self.attempt.open(self.header)
        return "claim"

    def _go_on(self, attempt: Attempt) -> str:
        event = next_event(attempt.job, self.events, self.writer)
        if isinstance(event, Sampled) and attempt.job.routed_experts:
            [*_, event] = routed([*self.events, event])
        self.events.append(event)
        if not isinstance(event, Closed):
            attempt.append(event)
            return "append"
        attempt.complete(
            Trajectory(job=attempt.job, header=self.header, events=self.events), TokenStats()
        )
        self.attempt = None
        return "complete"

    def close(self) -> None:
        self.ledger.redis.close()


def next_event(job: Job, events: Sequence[Event], writer: int) -> Event:
    """What an attempt writes after these events."""
    if not events:
        # The samples of every other task share a prompt, as they do in earnest.
        ids = array("I", [job.task, 7, 7] if job.task % 2 else [job.task, writer])
        return Prompt(ids=ids, messages=[{"role": "user", "content": f"task {job.task}"}], tools=[])
    turn = (len(events) - 1) // 2
    if turn == TURNS:
        return Closed(stop=Stop.DONE, reward=1.0)
    ids = array("I", [writer, check_sum(events)])
    if len(events) % 2:
        spans = [VersionSpan("1", 0, 2)]
        return Sampled(
            turn=turn,
            ids=ids,
            logprobs=array("f", [-1.0, -1.0]),
            versions=spans,
            finish=Finish.STOP,
        )
    message = {"role": "assistant", "content": f"{writer}"}
    last = turn == TURNS - 1
    return Observed(
        turn=turn,
        message=message,
        actions=[],
        replies=[],
        ids=array("I") if last else ids,
        done=last,
    )


def check_sum(events: Sequence[Event]) -> int:
    """Of all tokens so far."""
    return (
        zlib.crc32(
            b"".join(event.ids.tobytes() for event in events if not isinstance(event, Closed))
        )
        >> 1
    )


def mixed(trajectory: Trajectory) -> str:
    """What shows that the trajectory is not one chain of attempts; empty when it is one."""
    events = list(trajectory.events)
    if len(events) != 2 + 2 * TURNS:
        return f"{len(events)} events"
    for place, event in enumerate(events[1:-1], 1):
        if event.ids and event.ids[1] != check_sum(events[:place]):
            return (
                f"event {place} of writer {event.ids[0]} was not written behind "
                "the events before it"
            )
    return ""


class Trainer:
    """A consumer that holds up to two batches and acknowledges them some time later. With a name,
    it acknowledges up to a step, as after a checkpoint, and may be started again.
    """

    def __init__(self, url: str, rng: random.Random, name: str | None = None) -> None:
        self.client, self.rng, self.name = Client(url, run=RUN), rng, name
        self.acked: Counter[str] = Counter()
        """Group -> acknowledgements that the ledger took."""
        self.wrong: list[str] = []
        self.start()

    def start(self) -> None:
        self.consumer = self.client.consumer(name=self.name, extras=[ROUTED_EXPERTS])
        self.held: list[Batch] = []
        self.ended = False

    def restart(self) -> str:
        """The trainer dies, and another process goes on under its name."""
        self.consumer.close()
        self.start()
        return "restart"

    def step(self) -> str:
        if self.held and (self.ended or len(self.held) == 2 or self.rng.random() < 0.4):
            return self._ack(self.held.pop(0))
        return "" if self.ended else self._take()

    def _take(self) -> str:
        try:
            batch = self.consumer.next(1, timeout=0.0)
        except PullTimeout:
            return ""
        if batch is None:
            self.ended = True
            return "end"
        self.held.append(batch)
        for one in batch.groups:
            if len(one.trajectories) != SIZE:
                self.wrong.append(
                    f"group {one.id} came with {len(one.trajectories)} of {SIZE} trajectories"
                )
            self.wrong += [
                f"{t.job.id} is mixed: {why}" for t in one.trajectories if (why := mixed(t))
            ]
        return f"take {[one.id for one in batch.groups]}"

    def _ack(self, batch: Batch) -> str:
        try:
            if self.name:
                self.consumer.ack(up_to=batch.step)
            else:
                batch.ack()
        except NotHeld:
            return f"not held {[one.id for one in batch.groups]}"
        self.acked.update(one.id for one in batch.groups)
        return f"ack {[one.id for one in batch.groups]}"

    def close(self) -> None:
        self.consumer.close()
        self.client.close()

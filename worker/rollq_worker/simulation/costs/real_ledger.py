"""A run in a real Redis, played by the ledger's own scripts with made-up episodes, and what the server says of it.

The steps are those of a worker and a trainer, without engine, environment or Celery. Token ids and texts are made up,
so how well they are packed says nothing of real ones.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

from rollq.errors import RollqError
from rollq.events import Closed, Event, Finish, Observed, Prompt, Sampled, Stop, VersionSpan
from rollq.job import Job
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.finished_jobs import read_finished
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.ledger.versions import Versions
from rollq.servers.connection import connect
from rollq.trajectory import Header
from rollq.wire.codec import encode_header
from rollq.wire.events import encode_event

LATER_S = 1e6
"""Seconds until a job is to be published: never, here."""
HOLD_S = 600.0
WORDS = "refund exchange the order item of a customer who lives in wishes to change address payment method".split()
FREQUENT = 4000
"""Number of token ids that texts are made of. They are drawn as words are: a few of them often."""


class Meter:
    """What a Redis server has used since it started, as it says itself."""

    def __init__(self, url: str) -> None:
        self._redis: Any = connect(url)

    def cpu_s(self) -> float:
        found = self._redis.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    def scripts(self) -> int:
        """Number of the ledger's scripts that were called. The reapers' lock sends EVAL, which does not count."""
        return int(self._redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    def bytes(self) -> int:
        return int(self._redis.info("memory")["used_memory"])

    def version(self) -> str:
        return str(self._redis.info("server")["redis_version"])

    def close(self) -> None:
        self._redis.close()


class MadeUp:
    """Episodes of given lengths."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def opening(self, prompt: int) -> list[bytes]:
        """Header and first prompt, encoded."""
        header = Header(attempt=1, worker="rollq@simulate-1", rollq="0", task_hash="0" * 64, tokenizer_hash="0" * 64)
        said = [{"role": "system", "content": self._text(prompt)}]
        return [
            encode_header(header, "simulate"),
            self._encoded(Prompt(ids=self._ids(prompt), messages=said, tools=[])),
        ]

    def turn(self, number: int, sampled: int, observed: int) -> list[bytes]:
        """The two events of a turn, encoded."""
        said, heard = self._text(sampled), self._text(observed)
        policy = Sampled(
            turn=number,
            ids=self._ids(sampled),
            logprobs=array("f", (-self._random.expovariate(4.0) for _ in range(sampled))),
            versions=[VersionSpan("0", 0, sampled)] if sampled else [],
            finish=Finish.STOP,
            text=said,
        )
        answer = Observed(
            turn=number,
            message={"role": "assistant", "content": said},
            actions=[{"name": "respond", "arguments": {"content": said}}],
            replies=[{"role": "user", "content": heard}],
            ids=self._ids(observed),
        )
        return [self._encoded(policy), self._encoded(answer)]

    def end(self) -> bytes:
        return self._encoded(Closed(stop=Stop.DONE, reward=1.0))

    def _encoded(self, event: Event) -> bytes:
        return encode_event(event, "simulate")

    def _ids(self, count: int) -> array[int]:
        random = self._random.random
        return array("I", (int(FREQUENT ** random()) * 31 for _ in range(count)))

    def _text(self, tokens: int) -> str:
        return " ".join(self._random.choices(WORDS, k=max(1, tokens * 3 // 4)))


class RealLedger:
    """One run. Jobs are named by the number of their group, from 1, and their sample."""

    def __init__(
        self, url: str, run: str, group_size: int, ahead: int, batch: int = 1, max_staleness: int | None = None
    ) -> None:
        connection = connect(url)
        self.ledger, self.deliveries = Ledger(connection, run), Deliveries(connection, run)
        self.versions = Versions(connection, run)
        self._size, self._ahead, self._run = group_size, ahead, run
        self._bounded = max_staleness is not None
        if max_staleness is not None:
            self.versions.admit(batch, max_staleness, None)
        self._publish(0)
        self._claims: dict[tuple[int, int], tuple[Claim, int]] = {}
        """The claim of each job, and the number of entries in its journal."""
        self._batches = self._step = 0

    def submit(self, group: int) -> bool:
        """Enter the group. Returns whether there was room."""
        first = Job(run=self._run, group=f"g{group}", env="shop", task=group, size=self._size)
        jobs = [Job(run=self._run, group=first.group, env="shop", task=group, size=self._size, sample=sample)
                for sample in range(self._size)]  # fmt: skip
        ahead = 0 if self._bounded else self._ahead
        return not self.ledger.submit(jobs, publish_in_s=LATER_S, ahead=ahead).full

    def claim(self, group: int, sample: int) -> None:
        job_id = f"{self._run}/g{group}/{sample}"
        found = self.ledger.claim(
            job_id, worker="rollq@simulate-1", token=uuid.uuid4().hex, tokenizer_hash="0" * 64, template_hash="0" * 64
        )
        if not isinstance(found, Claim):
            raise RollqError(f"job {job_id}: the ledger refused the claim: {found.reason}")
        self._claims[group, sample] = (found, 0)

    def append(self, group: int, sample: int, blobs: Sequence[bytes]) -> None:
        claim, length = self._claims[group, sample]
        self.ledger.append(claim.job.id, claim.lease, length, blobs)
        self._claims[group, sample] = (claim, length + len(blobs))

    def complete(self, group: int, sample: int, blobs: Sequence[bytes], turns: int, tokens: int) -> None:
        claim, length = self._claims.pop((group, sample))
        self.ledger.complete(claim.job.id, claim.lease, length, blobs, turns=turns, total_tokens=tokens)

    def renew(self) -> None:
        """Renew the leases of all jobs that are played."""
        self.ledger.renew_leases([(claim.job.id, claim.lease) for claim, _ in self._claims.values()])

    def take(self, groups: int) -> list[tuple[int, int]]:
        """So many groups, which are held then, or none: number, and the step at its first claim."""
        self._batches += 1
        taken = self.deliveries.take(groups, f"simulate/{self._batches}", HOLD_S)
        if not taken.groups:
            self._batches -= 1
        return [(int(one.id.rpartition("/")[2][1:]), one.started or 0) for one in taken.groups]

    def read(self, groups: Sequence[int]) -> None:
        """Read the trajectories of groups that are held."""
        ids = [f"{self._run}/g{group}/{sample}" for group in groups for sample in range(self._size)]
        for found in read_finished(self.ledger.scripts, ids):
            if isinstance(found, Exception):
                raise found

    def acknowledge(self, before: int = 0) -> None:
        """Acknowledge the batch that was taken last, or the one so many before it."""
        self.deliveries.ack(f"simulate/{self._batches - before}")

    def publish(self) -> None:
        """The next step's policy is served."""
        self._step += 1
        self._publish(self._step)

    def _publish(self, step: int) -> None:
        self.versions.publish(step, str(step), uuid.uuid4().hex)

    def close(self) -> None:
        self.ledger.redis.close()

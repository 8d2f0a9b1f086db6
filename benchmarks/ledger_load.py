"""Runs of a chosen size in a ledger, played without workers: real episodes, written as a worker
writes them.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.servers.connection import connect
from rollq.trajectory import Trajectory
from rollq.wire.codec import encode_header
from rollq.wire.events import encode_event

SIZE = 8
"""Samples in a group."""
LATER_S = 1e6
"""Seconds until a job is to be sent: never, here."""


class Episode:
    """One recorded episode, to be played again under any job."""

    def __init__(self, recorded: Trajectory) -> None:
        self.turns = recorded.turns
        self.tokens = len(recorded.tokens)
        self.job = replace(recorded.job, run="", group="", sample=0, size=SIZE, min_viable=0, seq=0)
        self._events, self._header = recorded.events, recorded.header

    def blobs(self) -> list[bytes]:
        """Header and events, encoded."""
        return [
            encode_header(self._header, "bench"),
            *(encode_event(event, "bench") for event in self._events),
        ]

    def shorter(self) -> list[bytes]:
        """The journal without its turns: header, prompt and end."""
        blobs = self.blobs()
        return [*blobs[:2], blobs[-1]]


class Load:
    """One run."""

    def __init__(
        self,
        url: str,
        run: str,
        episode: Episode,
        tokenizer_hash: str = "t" * 64,
        template_hash: str = "c" * 64,
    ) -> None:
        self._hashes = {"tokenizer_hash": tokenizer_hash, "template_hash": template_hash}
        self.url = url
        self.ledger = Ledger(connect(url), run)
        self.episode = episode
        self.blobs = episode.blobs()
        self.short = episode.shorter()
        self._groups = 0

    def group(self) -> list[Job]:
        """A group that was not there before."""
        self._groups += 1
        first = replace(
            self.episode.job, run=self.ledger.run, group=f"tau2_2025-retail.train.{self._groups}"
        )
        return [replace(first, sample=sample) for sample in range(SIZE)]

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Enters a group. Returns the ids of its jobs."""
        return list(self.ledger.submit(jobs, send_in_s=LATER_S).new)

    def claim(self, job_id: str) -> Claim:
        claim = self.ledger.claim(
            job_id, worker="rollq@bench-1", token=uuid.uuid4().hex, **self._hashes
        )
        assert isinstance(claim, Claim), f"{job_id}: {claim}"
        return claim

    def append(self, claim: Claim, blobs: Sequence[bytes], index: int = 0) -> None:
        self.ledger.append(claim.job.id, claim.lease, index, blobs)

    def complete(self, claim: Claim, blobs: Sequence[bytes]) -> None:
        self.ledger.complete(claim.job.id, claim.lease, len(blobs) - 1, blobs[-1:], turns=8)

    def play(self, job_id: str, blobs: Sequence[bytes]) -> None:
        claim = self.claim(job_id)
        self.append(claim, blobs[:-1])
        self.complete(claim, blobs)

    def fill(self, jobs: int) -> None:
        """Groups that are queued, and one in ten that is ready, with little in its journals."""
        for number in range(max(2, jobs // SIZE)):
            ids = self.submit(self.group())
            if number % 10 == 0:
                for job_id in ids:
                    self.play(job_id, self.short)

    def fresh(self, groups: int) -> Iterator[list[str]]:
        """Enters that many groups, one after the other."""
        for _ in range(groups):
            yield self.submit(self.group())

    def close(self) -> None:
        self.ledger.redis.close()

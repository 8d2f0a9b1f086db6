"""One run from producer to trainer in this process, with its books: every job submitted is found again at the end.

Never hangs: a part of the stage that is gone and a run that stands still both end it with an error.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rollq.batch import Batch
from rollq.client.client import Client
from rollq.commands.progress import Progress
from rollq.errors import NotHeld, PullTimeout, RollqError
from rollq.export.jsonl import TrajectoryFile
from rollq.export.summary import Summary
from rollq.job import Job
from rollq.ledger.connection import connect
from rollq.ledger.reader import LedgerView
from rollq.ledger.replies import State
from rollq_worker.commands.demo.processes import Stage

STANDSTILL_S = 300.0
"""Without any change for so long it gives up. A turn of a model on a CPU can take minutes."""
LOOK_S = 0.5
"""Between two looks at the ledger."""


class Rehearsal:
    """The producer, the trainer loop and the books of one run."""

    def __init__(self, jobs: Sequence[Job], stage: Stage, progress: Progress, out: TrajectoryFile | None) -> None:
        """`jobs`: sample 0 of each group, all of one run and size."""
        self.jobs = jobs
        self.size = jobs[0].size
        self.run = jobs[0].run
        self.summary = Summary()
        self.delivered: Counter[str] = Counter()
        """How often each job was acknowledged."""
        self.deaths: list[str] = []
        self.lost = 0
        """Jobs that the books cannot account for, or that nobody asked for."""
        self._stage = stage
        self._out = out
        self._progress = progress
        self._view = LedgerView(connect(stage.redis_url), self.run)
        self._began = time.monotonic()
        self._failed: BaseException | None = None
        self._state: tuple[Any, ...] = ()
        self._moved = self._looked = 0.0

    def _client(self) -> Client:
        url = self._stage.redis_url
        return Client(url, run=self.run, broker_url=url)

    def play(self) -> None:
        """Until the sealed run has nothing more to hand out. Raises RollqError when it cannot go on."""
        producer = threading.Thread(target=self._produce, name="producer", daemon=True)
        with self._client() as client:
            producer.start()
            try:
                while not self._consume(client):
                    self._look()
            except Exception:
                self._stage.check()  # a part that is gone explains more than a connection that is
                raise
        self._looked = 0.0
        self._look()

    def _produce(self) -> None:
        try:
            with self._client() as client:
                client.submit(self.jobs)
                client.seal()
        except BaseException as e:  # raised again where somebody looks
            self._failed = e

    def _consume(self, client: Client) -> bool:
        """Takes groups as they come; returns True at the end of the run, False when it is time to look around."""
        try:
            for batch in client.batches(groups=1, timeout=LOOK_S):
                self._receive(batch)
                self._look()
        except (PullTimeout, NotHeld):  # what was not held any more comes again
            return False
        return True

    def _receive(self, batch: Batch) -> None:
        if self._out and not self._out.save(batch):
            return
        batch.ack()
        for trajectory in batch.trajectories:
            self.delivered[trajectory.job.id] += 1
            if self.delivered[trajectory.job.id] == 1:
                self.summary.add(trajectory)

    def _look(self) -> None:
        """Shows where the run stands. Raises RollqError when a part is gone or nothing moves any more."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        self._stage.check()
        if self._failed:
            raise self._failed
        stats = self._view.stats()
        state = (len(self.delivered), self._journaled(), *map(str, stats.values()))
        if state != self._state:
            self._state, self._moved = state, now
        elif now - self._moved > STANDSTILL_S:
            raise RollqError(f"nothing has moved for {STANDSTILL_S:g} s: {stats}\n{self._stage.last_words()}")
        total = len(self.jobs) * self.size
        self._progress.show(stats["done"] + stats["dead"], total, self._facts(stats, now - self._began))

    def _journaled(self) -> int:
        """Events in the journals of the running episodes: what grows when turns are long and episodes longer."""
        view, total = self._view, 0
        for member in view.redis.zrange(view.keys.leased, 0, -1):
            total += view.redis.llen(view.keys.journal(member.decode().rpartition("#")[0]))
        return total

    def _facts(self, stats: dict[str, Any], seconds: float) -> dict[str, str]:
        s = self.summary
        return {
            "playing": str(stats["leased"]),
            "delivered": str(len(self.delivered)),
            "reward": "-" if s.reward_mean is None else f"{s.reward_mean:.3f}",
            "turns": str(s.turns),
            "tokens": f"{s.sampled_tokens} sampled of {s.total_tokens} ({s.sampled_tokens / max(seconds, 1e-3):.0f}/s)",
            "stops": ", ".join(f"{stop} {count}" for stop, count in s.stops.most_common()) or "-",
        }

    def account(self, wall_s: float) -> dict[str, Any]:
        """The books, once `play` is back; `lost` is 0 when they balance."""
        stats = self._view.stats()
        dropped = self._find_the_undelivered()
        submitted, done, dead = (int(stats[name]) for name in ("submitted", "done", "dead"))
        self.lost = abs(len(self.jobs) * self.size - done - dead) + abs(done - len(self.delivered) - dropped)
        s = self.summary
        return {
            "run": self.run,
            "env": self.jobs[0].env,
            "groups": len(self.jobs),
            "size": self.size,
            "submitted": submitted,
            "done": done,
            "dead": dead,
            "delivered": len(self.delivered),
            "duplicates": sum(count - 1 for count in self.delivered.values()),
            "reward_mean": s.reward_mean,
            "pass_hat_k": s.pass_hat_k(self.size),
            "turns_mean": s.turns_mean,
            "sampled_tokens": s.sampled_tokens,
            "total_tokens": s.total_tokens,
            "stops": dict(s.stops),
            "wall_s": round(wall_s, 3),
        }

    def _find_the_undelivered(self) -> int:
        """Looks up every job that no batch held; returns how many were graded in a group that was dropped."""
        dropped = 0
        for job_id in (f"{self.run}/{job.group}/{i}" for job in self.jobs for i in range(self.size)):
            if job_id in self.delivered or (state := self._view.job(job_id)) is None:
                continue
            if state.state == State.DEAD:
                self.deaths.append(f"{job_id}: {state.failure}: {state.reason}")
            elif state.state == State.DONE and state.group_state == "dropped":
                dropped += 1
            else:
                continue
            self.summary.stops[str(self._view.trajectory(job_id).stop)] += 1
        return dropped

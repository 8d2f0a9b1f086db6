"""The run of a demo: producer and trainer loop in this process, and a count of every job at the
end.

It never hangs: an ended process and a run without progress both end it with an error.
"""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rollq.batch import Batch
from rollq.client.client import Client
from rollq.commands.progress import ProgressDisplay
from rollq.commands.receive import batches, save
from rollq.errors import NotHeld, RollqError
from rollq.export.output import TrajectoryFile
from rollq.export.summary import Summary
from rollq.job import Job, job_id
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import State
from rollq.servers.connection import connect
from rollq_worker.commands.demo.processes import DemoProcesses

STANDSTILL_S = 300.0
"""Seconds without any change after which the demo gives up. A model on a CPU can take minutes for a
turn.
"""
LOOK_S = 0.5
"""Seconds between two looks at the ledger."""


class DemoRun:
    """The producer, the trainer loop and the job counts of one run."""

    def __init__(
        self,
        jobs: Sequence[Job],
        processes: DemoProcesses,
        progress: ProgressDisplay,
        out: TrajectoryFile | None,
        received: Sequence[int],
    ) -> None:
        """`jobs`: sample 0 of each group, all of one run and size. `received`: signals that end
        the demo.
        """
        self.jobs = jobs
        self.size = jobs[0].size
        self.run = jobs[0].run
        self.summary = Summary()
        self.delivered: Counter[str] = Counter()
        """Acknowledgements of each job."""
        self.deaths: list[str] = []
        self.lost = 0
        """Jobs by which the counts disagree; set by `result`."""
        self._processes = processes
        self._out = out
        self._progress = progress
        self._received = received
        self._view = LedgerReader(connect(processes.redis_url), self.run)
        self._began = time.monotonic()
        self._failed: BaseException | None = None
        self._state: tuple[Any, ...] = ()
        self._changed = self._looked = 0.0

    def _client(self) -> Client:
        url = self._processes.redis_url
        return Client(url, run=self.run, broker_url=url)

    def play(self) -> None:
        """Plays until the sealed run has no more groups. Raises RollqError when it
        cannot continue.
        """
        producer = threading.Thread(target=self._produce, name="producer", daemon=True)
        try:
            with self._client() as client, client.consumer() as consumer:
                producer.start()
                for batch in batches(consumer, self._look, every_s=LOOK_S):
                    with contextlib.suppress(NotHeld):  # it is handed out again
                        self._receive(batch)
        except Exception:
            self._processes.check()  # a process that ended explains more than a lost connection
            raise
        self._looked = 0.0
        self._look()

    def _produce(self) -> None:
        try:
            with self._client() as client:
                client.submit(self.jobs)
                client.seal()
        except BaseException as e:  # raised again in the main thread
            self._failed = e

    def _receive(self, batch: Batch) -> None:
        if not save(batch, self._out):
            return
        batch.ack()
        for trajectory in batch.trajectories:
            self.delivered[trajectory.job.id] += 1
            if self.delivered[trajectory.job.id] == 1:
                self.summary.add(trajectory)

    def _look(self) -> int:
        """Shows the run's state, at most every LOOK_S seconds; returns how many groups to take
        next.

        Raises RollqError when a process has ended or nothing changes any more.
        """
        if self._received:
            sys.exit(128 + self._received[0])
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return 1
        self._looked = now
        self._processes.check()
        if self._failed:
            raise self._failed
        stats = self._view.stats()
        state = (len(self.delivered), self._journaled(), *map(str, stats.values()))
        if state != self._state:
            self._state, self._changed = state, now
        elif now - self._changed > STANDSTILL_S:
            raise RollqError(
                f"nothing has changed for {STANDSTILL_S:g} s: "
                f"{stats}\n{self._processes.last_output()}"
            )
        total = len(self.jobs) * self.size
        self._progress.show(
            stats["done"] + stats["dead"], total, self._facts(stats, now - self._began)
        )
        return 1

    def _journaled(self) -> int:
        """Number of events in the journals of running episodes. They show progress while no episode
        ends.
        """
        view = self._view
        total = 0
        for member in view.redis.zrange(view.keys.leased, 0, -1):
            total += view.redis.llen(view.keys.journal(member.decode().partition("#")[0]))
        return total

    def _facts(self, stats: dict[str, Any], seconds: float) -> dict[str, str]:
        s = self.summary
        return {
            "playing": str(stats["leased"]),
            "delivered": str(len(self.delivered)),
            "reward": "-" if s.reward_mean is None else f"{s.reward_mean:.3f}",
            "turns": str(s.turns),
            "tokens": f"{s.sampled_tokens} sampled of {s.total_tokens} "
            f"({s.sampled_tokens / max(seconds, 1e-3):.0f}/s)",
            "stops": ", ".join(f"{stop} {count}" for stop, count in s.stops.most_common()) or "-",
        }

    def result(self, wall_s: float) -> dict[str, Any]:
        """The counts and means, after `play`. Sets `lost`, which is 0 when every job is accounted
        for.
        """
        stats = self._view.stats()
        dropped = self._count_dropped()
        submitted, done, dead = (int(stats[name]) for name in ("submitted", "done", "dead"))
        self.lost = abs(len(self.jobs) * self.size - done - dead) + abs(
            done - len(self.delivered) - dropped
        )
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
            **self.summary.numbers(self.size),
            "wall_s": round(wall_s, 3),
        }

    def _count_dropped(self) -> int:
        """Number of undelivered jobs that were graded in a dropped group. Also collects the deaths
        and stops.
        """
        dropped = 0
        played = (job_id(self.run, job.group, i) for job in self.jobs for i in range(self.size))
        for undelivered in (each for each in played if each not in self.delivered):
            state = self._view.job(undelivered)
            if state is None:
                continue
            if state.state == State.DEAD:
                self.deaths.append(f"{undelivered}: {state.failure}: {state.reason}")
            elif state.state == State.DONE and state.group_state == "dropped":
                dropped += 1
            else:
                continue
            self.summary.stops[str(self._view.trajectory(undelivered).stop)] += 1
        return dropped

"""One run under faults: its jobs, its consumer, the faults that took effect, and how long recovery
took.

It uses the commands, the light client and signals, nothing else of rollq.
"""

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rollq.errors import RollqError
from rollq.export.record import record
from rollq.ledger.replies import JobState, State
from rollq.processes.child import Child
from tests.chaos.processes import RUN, Processes
from tests.ledger_of import reader_of
from tests.rollback.redis_file import append_only_file

LEASE_S = 15.0
EXIT_S = 5.0
"""Seconds that a worker has after SIGTERM."""
SLACK_S = 1.0
"""Tolerance for a machine with more processes than cores."""
Leases = Sequence[tuple[str, int]]
"""Pairs of job and attempt."""


class FaultRun(Processes):
    """A run and its processes."""

    def __init__(self, folder: Path, seed: int, deadline_s: float) -> None:
        super().__init__(folder, deadline_s)
        self.rng = random.Random(seed)
        self.faults = 0
        self.recovered_s: list[float] = []
        self.expected: set[str] = set()
        self.journals: dict[str, dict[str, Any]] = {}
        """The done jobs as the ledger had them; empty unless the consumer starts last."""
        self.wrong: list[str] = []
        """Problems that the row itself found."""
        self.expected_dead: set[str] = set()
        """The jobs that must die; no others may."""
        self.max_regenerated: int | None = None
        """The most turns that may be generated twice; None: not checked."""
        self.lost_bytes = 0
        """Bytes of the append-only file that were cut off. Then turns are generated again, and jobs
        played again.
        """
        self.out = folder / "out.jsonl"
        self.consumer: Child | None = None
        self._groups = 0

    def submit(self, tasks: int = 8, size: int = 3, *flags: str, env: str = "shop") -> None:
        """Submit the whole run and seal it."""
        self.expect_jobs(env, range(tasks), size)
        self.run_command(*self.submit_command(0, tasks - 1, size, *flags, "--seal", env=env))

    def submit_command(
        self, first: int, last: int, size: int, *flags: str, env: str = "shop"
    ) -> list[str]:
        """`rollq submit` for these tasks."""
        line = [
            "submit",
            "--run",
            RUN,
            "--env",
            env,
            "--tasks",
            f"{first}-{last}",
            "--size",
            str(size),
        ]
        return [*line, *flags]

    def expect_jobs(self, env: str, tasks: Iterable[int], size: int) -> None:
        self.expected |= {
            f"{RUN}/{env}.train.{task}/{sample}" for task in tasks for sample in range(size)
        }

    def stats(self) -> dict[str, Any]:
        return self.client.stats()

    def start_consumer(self, groups: int = 100_000) -> Child:
        """Start `rollq pull` for that many groups, and again whenever it has them. One before it
        may have been killed, but not have failed.
        """
        if self.consumer is not None:
            code = self.consumer.exit_code
            at_the_end = "the run is sealed and has no more" in self.consumer.log.read_text()
            self.check(
                at_the_end or code in (None, 0, -signal.SIGKILL), f"rollq pull ended with {code}"
            )
        self._groups = groups
        line = [
            "pull",
            "--run",
            RUN,
            "--groups",
            str(groups),
            "--wait",
            "--out",
            str(self.out),
            "--json",
        ]
        self.consumer = self.start_command("pull", *line)
        return self.consumer

    def keep_running(self) -> None:
        if self.consumer is not None and self.consumer.exit_code == 0:
            self.start_consumer(self._groups)

    def finish(self) -> None:
        """Wait until all jobs have ended and all groups are delivered."""
        self.wait_for_end()
        if self.consumer is None:
            self.journals = {
                job: found for job in sorted(self.expected) if (found := self._journal(job))
            }
            stats = self.stats()
            readable = stats["done"] - stats["delivered"]
            self.check(
                len(self.journals) == readable,
                f"{len(self.journals)} journals of {readable} jobs can be read",
            )
        if self.consumer is None or self.consumer.exit_code is not None:
            self.start_consumer()
        self.wait(self._delivered, "the delivery of all groups")

    def dead(self) -> dict[str, str]:
        """The dead jobs and their reasons."""
        return {
            letter.job_id: f"{letter.failure}: {letter.reason}" for letter in self.client.dead()
        }

    def dropped(self, jobs: Iterable[str]) -> set[str]:
        """The done jobs among these whose group was dropped."""
        states = {job: self.state(job) for job in jobs}
        return {
            job
            for job, s in states.items()
            if s and s.state is State.DONE and s.group_state == "dropped"
        }

    def state(self, job: str) -> JobState | None:
        """None for an unknown job and for an unreadable record."""
        try:
            return reader_of(self.client).job(job)
        except RollqError:
            return None

    def wait_for_end(self) -> None:
        self.wait(self.has_ended, "the end of all jobs")

    def has_ended(self) -> bool:
        return self.ended() >= len(self.expected)

    def ended(self) -> int:
        stats = self.stats()
        return int(stats["done"] + stats["dead"])

    def unacknowledged(self) -> int:
        """Groups that are open, ready or held."""
        stats = self.stats()
        return int(stats["groups_open"] + stats["groups_ready"] + stats["groups_held"])

    def _journal(self, job: str) -> dict[str, Any] | None:
        state = self.state(job)
        return (
            record(self.client.trajectory(job))
            if state and state.state is State.DONE and state.journal
            else None
        )

    def _delivered(self) -> bool:
        return (
            not self.unacknowledged()
            and self.consumer is not None
            and self.consumer.exit_code is not None
        )

    # -- faults

    def count_fault(self, what: str, times: int, least: int = 1) -> None:
        """Count faults that took effect. Too few are a problem: then the row shows nothing."""
        self.faults += times
        self.check(times >= least, f"the fault did not happen: {times} {what}, not {least}")

    def send_signal(self, child: Child, number: int = signal.SIGKILL) -> None:
        """Send a signal, which must take effect, and count it as a fault."""
        self.count_fault(
            f"{child.name} that {signal.Signals(number).name} took effect on",
            self.try_signal(child, number),
        )

    def try_signal(self, child: Child, number: int) -> bool:
        """Send a signal. Returns whether it took effect: the child may have ended before."""
        if child.exit_code is not None:
            return False
        os.kill(child.pid, number)
        if number == signal.SIGKILL:
            self.wait(lambda: child.exit_code is not None, f"the death of {child.name}", 20)
            return child.exit_code == -number
        if number == signal.SIGSTOP and Path("/proc/self/stat").exists():
            stat = Path(f"/proc/{child.pid}/stat")
            self.wait(
                lambda: stat.read_text().rpartition(")")[2].split()[0] == "T",
                f"{child.name} to stand still",
                20,
            )
        return True

    def cut_power(self) -> None:
        """Kill Redis and cut its file off at a place that it wrote in the last second. Then Redis
        comes back.
        """
        file = append_only_file(self.folder / "redis")
        before = file.stat().st_size
        time.sleep(1.0)
        self.send_signal(self.redis, signal.SIGKILL)
        lost = self.rng.randint(0, max(0, file.stat().st_size - before))
        os.truncate(file, file.stat().st_size - lost)
        self.lost_bytes += lost
        time.sleep(self.rng.uniform(0.0, 2.0))
        self.start_redis()

    def environment_faults(self, kind: str) -> int:
        """How many ordered faults of this kind have happened."""
        return len(list(self.faults_done.glob(f"{kind}.*")))

    def leases_of(self, worker: Child) -> Leases:
        """The jobs that this worker is playing."""
        held = []
        for job in self.expected:
            state = self.state(job)
            if state and state.state is State.LEASED and state.worker.endswith(f"-{worker.pid}"):
                held.append((job, state.attempt))
        return held

    def wait_for_leases(self, worker: Child, least: int = 4) -> Leases:
        """Wait until this worker plays at least that many jobs. Returns them."""
        found: list[Leases] = [()]

        def enough() -> bool:
            found[0] = self.leases_of(worker)
            return len(found[0]) >= least

        self.wait(enough, f"{least} jobs of one worker", 60)
        return found[0]

    def freeze_with_leases(self, worker: Child, least: int = 1) -> Leases:
        """Freeze the worker, so that it claims and ends nothing more. Returns its jobs, at least
        that many.
        """
        self.try_signal(worker, signal.SIGSTOP)
        held = self.leases_of(worker)
        self.check(
            len(held) >= least,
            f"the fault did not happen: to a worker with {len(held)} jobs, not {least}",
        )
        return held

    def taken_over(self, held: Leases) -> bool:
        """Whether others play all of these jobs, or they have ended."""
        return all(
            self._has_moved_on(job, attempt, (State.LEASED, State.DONE, State.DEAD))
            for job, attempt in held
        )

    def returned(self, held: Leases) -> bool:
        """Whether none of these attempts is still running."""
        return all(self._has_moved_on(job, attempt, tuple(State)) for job, attempt in held)

    def _has_moved_on(self, job: str, attempt: int, states: Sequence[State]) -> bool:
        state = self.client.job(job)
        if state.attempt > attempt:
            return state.state in states
        return state.state in (State.DONE, State.DEAD) or (
            state.state is State.QUEUED and State.QUEUED in states
        )

    def wait_for_lost_leases(self, within_s: float) -> None:
        """Wait until a worker that continues says that it lost a lease: to a write, or to its
        heartbeat before that.
        """
        says = re.compile(r"(no longer holds the|lost its) lease")
        logs = [child.log for child in self.children if child.name == "worker"]
        self.wait(
            lambda: any(says.search(log.read_text()) for log in logs),
            "a worker that lost its leases",
            within_s,
        )

    def progress(self) -> Callable[[], bool]:
        """Returns whether, when called later, turns were generated or a job ended since now. Jobs
        must be left.
        """
        answered, ended = self.engine_proxy.answered, self.ended()
        if ended >= len(self.expected):
            self.check(
                False, "all jobs had ended before the fault was over: nothing was left to recover"
            )
            return lambda: True
        return lambda: self.engine_proxy.answered > answered + 2 or self.ended() > ended

    def count_standstill(self, what: str, seconds: float) -> None:
        """Wait. It counts as a fault when no turn is generated in the second half."""
        time.sleep(seconds / 2)
        answered = self.engine_proxy.answered
        time.sleep(seconds / 2)
        self.count_fault(what, int(self.engine_proxy.answered == answered))

    def measure_recovery(
        self, done: Callable[[], bool], what: str, within_s: float = 60.0, since: float = 0.0
    ) -> None:
        """Wait, and record the time since `since` (monotonic), or since now."""
        start = since or time.monotonic()
        self.wait(done, what, within_s)
        self.recovered_s.append(time.monotonic() - start)

    def wait_for_progress(self) -> None:
        self.wait(self.progress(), "turns before the fault", 40)

    def check_leases_expire(self, held: Leases, since: float) -> None:
        """Wait until a dead worker's jobs are queued again: within a lease and the time
        of a reap.
        """
        self.wait(lambda: self.returned(held), "the expiry of a dead worker's leases", LEASE_S + 10)
        took = time.monotonic() - since
        self.check(
            took <= LEASE_S + EXIT_S + SLACK_S,
            f"a dead worker's jobs came back only after {took:.1f} s",
        )

    def check_no_failures(self) -> None:
        """Wait for the end of all jobs. A failure that cost budget is a problem."""
        self.wait_for_end()
        failures = self.stats()["failures"]
        self.check(not failures, f"an outage cost budget: {failures}")

    def check(self, good: bool, otherwise: str) -> None:
        if not good:
            self.wrong.append(otherwise)

    def run_later(self, seconds: float, act: Callable[[], object]) -> threading.Timer:
        """Call it after a while in another thread, where no process may be started."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()
        return timer

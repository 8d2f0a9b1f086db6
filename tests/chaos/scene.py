"""One run: what is submitted, who plays it, who takes it, and how long it takes to recover. What a row breaks.

Only the commands, the light client and signals are used.
"""

import os
import random
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
from tests.chaos.parts import RUN, Parts

LEASE_S = 15.0
EXIT_S = 5.0
"""Seconds that a worker has after SIGTERM."""
SLACK_S = 1.0
"""What a machine with more processes than cores may add to a second's bound."""
Held = Sequence[tuple[str, int]]
"""(job, attempt)"""


class Scene(Parts):
    """A run and its processes."""

    def __init__(self, folder: Path, seed: int, deadline_s: float) -> None:
        super().__init__(folder, deadline_s)
        self.rng = random.Random(seed)
        self.faults = 0
        self.recovered_s: list[float] = []
        self.expected: set[str] = set()
        self.journals: dict[str, dict[str, Any]] = {}
        """Done jobs as the ledger had them before anybody took them; empty unless the consumer came last."""
        self.wrong: list[str] = []
        """What a row itself found wrong."""
        self.doomed: set[str] = set()
        """Jobs that are to die; no others may."""
        self.regenerable: int | None = None
        """At most so many turns may have been generated twice; None: this row does not say."""
        self.out = folder / "out.jsonl"
        self.consumer: Child | None = None
        self._groups = 0

    def submit(self, tasks: int = 8, size: int = 3, *flags: str, env: str = "shop") -> None:
        """Submits the whole run and seals it."""
        self.expect(env, range(tasks), size)
        self.run(*self.line(0, tasks - 1, size, *flags, "--seal", env=env))

    def line(self, first: int, last: int, size: int, *flags: str, env: str = "shop") -> list[str]:
        """`rollq submit` for these tasks."""
        line = ["submit", "--run", RUN, "--env", env, "--tasks", f"{first}-{last}", "--size", str(size)]
        return [*line, *flags]

    def expect(self, env: str, tasks: Iterable[int], size: int) -> None:
        self.expected |= {f"{RUN}/{env}.train.{task}/{sample}" for task in tasks for sample in range(size)}

    def stats(self) -> dict[str, Any]:
        return self.client.stats()

    def consume(self, groups: int = 100_000) -> Child:
        """`rollq pull` in the background, into the file, for so many groups; started again whenever it has them."""
        self._groups = groups
        line = ["pull", "--run", RUN, "--groups", str(groups), "--out", str(self.out), "--json"]
        self.consumer = self.start("pull", *line)
        return self.consumer

    def tend(self) -> None:
        if self.consumer is not None and self.consumer.exit_code == 0:
            self.consume(self._groups)

    def settle(self) -> None:
        """Waits until everything has ended and is delivered."""
        self.wait(lambda: self.ended() >= len(self.expected), "the end of all jobs")
        if self.consumer is None:
            self.journals = {job: found for job in sorted(self.expected) if (found := self._journal(job))}
            stats = self.stats()
            readable = stats["done"] - stats["delivered"]
            self.check(len(self.journals) == readable, f"{len(self.journals)} journals of {readable} jobs can be read")
        if self.consumer is None or self.consumer.exit_code is not None:
            self.consume()
        self.wait(self._delivered, "the delivery of all groups")

    def dead(self) -> dict[str, str]:
        """The dead jobs, and what killed each."""
        return {letter.job_id: f"{letter.failure}: {letter.reason}" for letter in self.client.dead()}

    def dropped(self, jobs: Iterable[str]) -> set[str]:
        """Those of them that are done, in a group that was dropped."""
        states = {job: self.state(job) for job in jobs}
        return {job for job, s in states.items() if s and s.state is State.DONE and s.group_state == "dropped"}

    def state(self, job: str) -> JobState | None:
        """None for an unknown job, and for one whose record cannot be read."""
        try:
            return self.client.ledger.job(job)
        except RollqError:
            return None

    def ended(self) -> int:
        stats = self.stats()
        return int(stats["done"] + stats["dead"])

    def _journal(self, job: str) -> dict[str, Any] | None:
        state = self.state(job)
        return record(self.client.trajectory(job)) if state and state.state is State.DONE and state.journal else None

    def _delivered(self) -> bool:
        stats = self.stats()
        left = stats["groups_open"] + stats["groups_ready"] + stats["groups_held"]
        return not left and self.consumer is not None and self.consumer.exit_code is not None

    # -- faults

    def struck(self, what: str, times: int, least: int = 1) -> None:
        """A fault took effect so often, counted where it does; a row whose faults did not happen shows nothing."""
        self.faults += times
        self.check(times >= least, f"the fault did not happen: {times} {what}, not {least}")

    def kill(self, child: Child, number: int = signal.SIGKILL) -> None:
        """Sends it the signal, which must take effect."""
        self.struck(f"{child.name} that {signal.Signals(number).name} took effect on", self.hit(child, number))

    def hit(self, child: Child, number: int) -> bool:
        """Whether the signal took effect: it may have ended by itself before."""
        if child.exit_code is not None:
            return False
        os.kill(child.pid, number)
        if number == signal.SIGKILL:
            self.wait(lambda: child.exit_code is not None, f"the death of {child.name}", 20)
            return child.exit_code == -number
        if number == signal.SIGSTOP and Path("/proc/self/stat").exists():
            stat = Path(f"/proc/{child.pid}/stat")
            self.wait(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"{child.name} to stand still", 20)
        return True

    def mischief_of(self, kind: str) -> int:
        """How often the environment has done this."""
        return len(list(self.mischief_done.glob(f"{kind}.*")))

    def held_by(self, worker: Child) -> Held:
        """What this worker is playing."""
        held = []
        for job in self.expected:
            state = self.state(job)
            if state and state.state is State.LEASED and state.worker.endswith(f"-{worker.pid}"):
                held.append((job, state.attempt))
        return held

    def await_some(self, worker: Child, least: int = 4) -> Held:
        """Waits until this worker plays at least so many jobs, and returns them."""
        found: list[Held] = [()]

        def enough() -> bool:
            found[0] = self.held_by(worker)
            return len(found[0]) >= least

        self.wait(enough, f"{least} jobs of one worker", 60)
        return found[0]

    def caught(self, worker: Child, least: int = 1) -> Held:
        """Freezes it, so that it takes and ends nothing more, and returns what it holds, which must be something."""
        self.hit(worker, signal.SIGSTOP)
        held = self.held_by(worker)
        self.check(len(held) >= least, f"the fault did not happen: to a worker with {len(held)} jobs, not {least}")
        return held

    def taken_over(self, held: Held) -> bool:
        """Whether others play all of these, or they have ended."""
        return all(self._moved(job, attempt, (State.LEASED, State.DONE, State.DEAD)) for job, attempt in held)

    def given_back(self, held: Held) -> bool:
        """Whether none of these is held under its old attempt any more."""
        return all(self._moved(job, attempt, tuple(State)) for job, attempt in held)

    def _moved(self, job: str, attempt: int, states: Sequence[State]) -> bool:
        state = self.client.job(job)
        if state.attempt > attempt:
            return state.state in states
        return state.state in (State.DONE, State.DEAD) or (state.state is State.QUEUED and State.QUEUED in states)

    def progress(self) -> Callable[[], bool]:
        """Whether a job has ended or turns were generated since now, when there must still be some to play."""
        answered, ended = self.gateway.answered, self.ended()
        if ended >= len(self.expected):
            self.check(False, "all jobs had ended before the fault was over: nothing was left to recover")
            return lambda: True
        return lambda: self.gateway.answered > answered + 2 or self.ended() > ended

    def standstill(self, what: str, seconds: float) -> None:
        """Waits for so long; it counts as a fault if no turn is generated in the second half."""
        time.sleep(seconds / 2)
        answered = self.gateway.answered
        time.sleep(seconds / 2)
        self.struck(what, int(self.gateway.answered == answered))

    def recover(self, done: Callable[[], bool], what: str, within_s: float = 60.0, since: float = 0.0) -> None:
        """Waits for it and notes how long it took, since then (monotonic) or now."""
        start = since or time.monotonic()
        self.wait(done, what, within_s)
        self.recovered_s.append(time.monotonic() - start)

    def cost_nothing(self) -> None:
        """Waits for the end of all jobs, and finds it wrong if one of them has paid for an outage."""
        self.wait(lambda: self.ended() >= len(self.expected), "the end of all jobs")
        failures = self.stats()["failures"]
        self.check(not failures, f"an outage cost budget: {failures}")

    def check(self, good: bool, otherwise: str) -> None:
        if not good:
            self.wrong.append(otherwise)

    def later(self, seconds: float, act: Callable[[], object]) -> threading.Timer:
        """Does it after a while, from another thread (no process may be started there)."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()
        return timer

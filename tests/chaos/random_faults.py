"""A storm: all faults at random, for a given time, then one more death of a worker while all else
is well.

A seed fixes the choices, but not the moments of the run at which they fall.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

from rollq.processes.child import Child
from tests.chaos.fault_run import EXIT_S, LEASE_S, SLACK_S, FaultRun
from tests.chaos.junk_messages import send_junk_messages

SIZE = 4
GROUPS_PER_SUBMISSION = 5
AHEAD = 12
WORKERS = 3
SLOTS = 8
"""Of each worker: all of a lot's jobs run at once."""


class RandomFaults:
    """The faults, and the restarts that follow them."""

    def __init__(self, run: FaultRun) -> None:
        self.run = run
        self.workers = run.start_processes(
            latency=0.2, redis_proxy=True, workers=(SLOTS,) * WORKERS
        )
        run.start_consumer(GROUPS_PER_SUBMISSION)
        run.max_regenerated = 0
        self.producer: Child | None = None
        self.flags: tuple[str, ...] = ()
        self.tasks = 0
        self.frozen: set[int] = set()
        self.leaving: set[int] = set()
        self.resubmit = False
        """Whether Redis has lost something since, perhaps what a producer submitted that is gone by
        now.
        """
        self.injected: dict[str, int] = {}
        self.faults: list[Callable[[], None]] = [
            self.kill_worker,
            self.kill_worker,
            self.drain_worker,
            self.freeze_worker,
            self.kill_engine,
            self.freeze_engine,
            self.update_weights,
            self.restart_redis,
            self.cut_power,
            self.reset_redis_connections,
            self.freeze_redis_connections,
            self.kill_consumer,
            self.kill_producer,
            self.send_junk,
        ]

    def inject_one(self) -> None:
        fault = self.run.rng.choice(self.faults)
        fault()
        self.injected[fault.__name__] = self.injected.get(fault.__name__, 0) + 1

    def keep_running(self) -> None:
        """Restart what has ended, as an orchestrator does."""
        for n, worker in enumerate(self.workers):
            if worker.exit_code is not None:
                self.workers[n] = self.run.start_worker(SLOTS, wait=False)
        if self.run.consumer is None or self.run.consumer.exit_code is not None:
            self.run.start_consumer(GROUPS_PER_SUBMISSION)

    def keep_submitting(self) -> None:
        """Restart also the producer: with the same groups after a kill, else with the next ones."""
        self.keep_running()
        if self.producer is None or self.producer.exit_code is not None:
            if self.producer is None or self.producer.exit_code == 0:
                self.tasks += GROUPS_PER_SUBMISSION
                self.run.expect_jobs("shop", range(self.tasks), SIZE)
            self.producer = self.submit()

    def submit(self, tasks: int = 0) -> Child:
        """The last groups, or those before that number of tasks."""
        last = (tasks or self.tasks) - 1
        first = max(0, last + 1 - GROUPS_PER_SUBMISSION)
        line = self.run.submit_command(
            first, last, SIZE, "--set", f"ahead={AHEAD}", *self.flags, "--json"
        )
        return self.run.start_command("submit", *line)

    def wait_until_settled(self) -> None:
        """Wait until everything that was submitted has ended."""
        self.run.wait(self._submitted, "a submission")
        while self.producer is None or self.producer.exit_code != 0:
            self.producer = self.submit()
            self.run.wait(self._submitted, "a submission again")
        if self.resubmit:
            for tasks in range(GROUPS_PER_SUBMISSION, self.tasks + 1, GROUPS_PER_SUBMISSION):
                self.producer = self.submit(tasks)
                self.run.wait(self._submitted, "a submission of what may be lost")
            self.resubmit = False
        self.run.wait(self._ended, "the end of all jobs")

    def kill_one_more_worker(self) -> None:
        """Submit and seal, and kill one worker while all else is well."""
        self.tasks += GROUPS_PER_SUBMISSION
        self.run.expect_jobs("shop", range(self.tasks), SIZE)
        self.flags = ("--seal",)
        self.producer = self.submit()
        engine_proxy = self.run.engine_proxy
        self.run.wait(lambda: engine_proxy.in_flight >= WORKERS * 2, "jobs that are played", 60)
        before, killed = engine_proxy.regenerated, time.monotonic()
        self._signal(self.workers[0], signal.SIGKILL)
        time.sleep(1.0)
        cut = {job for job, at in engine_proxy.last_abandoned.items() if at >= killed}
        self.run.check(bool(cut), "the fault did not happen: the dead worker waited for nothing")
        self.run.wait(
            lambda: all(
                engine_proxy.last_asked[job] > engine_proxy.last_abandoned[job] for job in cut
            ),
            "a dead worker's jobs",
            60,
        )
        took = time.monotonic() - killed
        self.run.recovered_s.append(took)
        self.run.check(
            took <= LEASE_S + EXIT_S + SLACK_S,
            f"a dead worker's jobs went on only after {took:.1f} s",
        )
        # Includes turns that were answered and not yet journaled.
        again = engine_proxy.regenerated - before
        self.run.check(
            again <= SLOTS, f"{again} turns again after the death of a worker of {SLOTS} jobs"
        )
        self.wait_until_settled()

    def _submitted(self) -> bool:
        self.keep_running()
        return self.producer is not None and self.producer.exit_code is not None

    def _ended(self) -> bool:
        self.keep_running()
        return self.run.ended() >= len(self.run.expected)

    # -- faults

    def kill_worker(self) -> None:
        self._allow_regenerated(SLOTS)
        self._signal(self.run.rng.choice(self.workers), signal.SIGKILL)

    def drain_worker(self) -> None:
        worker = self.run.rng.choice(self.workers)
        if worker.exit_code is None and worker.pid not in self.frozen:
            # Its generations, when the engine is away and cannot return them.
            self._allow_regenerated(SLOTS)
            self.leaving.add(worker.pid)
            self._signal(worker, signal.SIGTERM)
            threading.Thread(
                target=self._check_exit_time, args=(worker, time.monotonic()), daemon=True
            ).start()

    def freeze_worker(self) -> None:
        worker, seconds = self.run.rng.choice(self.workers), self.run.rng.choice((2.0, 8.0, 20.0))
        if worker.pid not in self.leaving:
            self._allow_regenerated(SLOTS)
            self._freeze(worker, seconds)

    def kill_engine(self) -> None:
        self._allow_regenerated(self.run.engine_proxy.in_flight)
        self.run.faults += 1
        self.run.kill_engine()
        time.sleep(self.run.rng.uniform(0.0, 3.0))
        self.run.restart_engine()

    def freeze_engine(self) -> None:
        self._freeze(self.run.engine, self.run.rng.uniform(1.0, 5.0))

    def update_weights(self) -> None:
        self.run.faults += 1
        self.run.run_later(
            0.0,
            lambda: self.run.engine_post("/update_weight_version", new_version=str(time.time())),
        )

    def restart_redis(self) -> None:
        self.run.send_signal(self.run.redis, self.run.rng.choice((signal.SIGTERM, signal.SIGKILL)))
        self.run.wait(lambda: self.run.redis.exit_code is not None, "the end of Redis", 15)
        self.run.start_redis()

    def cut_power(self) -> None:
        self.run.cut_power()
        self.resubmit = True

    def reset_redis_connections(self) -> None:
        assert self.run.redis_proxy
        self.run.faults += self.run.redis_proxy.reset_connections() > 0

    def freeze_redis_connections(self) -> None:
        assert self.run.redis_proxy
        self.run.faults += 1
        self.run.redis_proxy.freeze()
        self.run.run_later(self.run.rng.uniform(0.5, 7.0), self.run.redis_proxy.thaw)

    def kill_consumer(self) -> None:
        if self.run.consumer is not None:
            self._signal(self.run.consumer, signal.SIGKILL)

    def kill_producer(self) -> None:
        if self.producer is not None:
            self._signal(self.producer, signal.SIGKILL)

    def send_junk(self) -> None:
        """Twice, so that a worker gets a job's message again while it plays the job."""
        self.run.faults += send_junk_messages(self.run) + send_junk_messages(self.run)

    def _allow_regenerated(self, turns: int) -> None:
        """This fault may cause that many turns to be generated again."""
        self.run.max_regenerated = (self.run.max_regenerated or 0) + turns

    def _signal(self, child: Child, number: int) -> None:
        if child.exit_code is None:
            self.run.faults += self.run.try_signal(child, number)

    def _freeze(self, child: Child, seconds: float) -> None:
        if child.exit_code is None:
            self.frozen.add(child.pid)
            self.run.faults += self.run.try_signal(child, signal.SIGSTOP)
            self.run.run_later(seconds, lambda: self.wake(child))

    def wake(self, child: Child) -> None:
        if child.exit_code is None:
            os.kill(child.pid, signal.SIGCONT)
        self.frozen.discard(child.pid)

    def _check_exit_time(self, worker: Child, since: float) -> None:
        while worker.exit_code is None and time.monotonic() - since <= EXIT_S + SLACK_S:
            time.sleep(0.05)
        took = time.monotonic() - since
        self.run.check(took <= EXIT_S + SLACK_S, f"a worker stayed {took:.1f} s after SIGTERM")


def inject_at_random(run: FaultRun, seconds: float) -> None:
    """Inject faults for that time, then let the run settle."""
    random_faults = RandomFaults(run)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        random_faults.keep_submitting()
        pause = time.monotonic() + run.rng.uniform(0.3, 2.5)
        while time.monotonic() < pause:
            random_faults.keep_submitting()
            time.sleep(0.1)
        random_faults.inject_one()
    for child in (*random_faults.workers, run.engine):
        random_faults.wake(child)
    assert run.redis_proxy
    run.redis_proxy.thaw()
    start = time.monotonic()
    random_faults.wait_until_settled()
    settled_s = time.monotonic() - start
    random_faults.kill_one_more_worker()
    print(
        f"the storm: {run.faults} faults, settled after {settled_s:.1f} s; "
        f"{random_faults.injected}",
        flush=True,
    )

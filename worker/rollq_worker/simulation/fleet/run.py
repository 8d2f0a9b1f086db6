"""Plays a fleet on a simulated clock: producer, Redis, worker processes, engines and trainer, rollout by rollout.

Each step of a rollout waits for what it needs: a slot, the interpreter of its process, a core, Redis, the engine. How
long each takes is measured (costs/) or given (fleet.py). The same fleet and seed give the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from rollq.errors import RollqError
from rollq_worker.simulation.costs.table import Costs
from rollq_worker.simulation.fleet.clock import Act, Clock, Cores, Process, Server
from rollq_worker.simulation.fleet.engines import Rollout, engine_fleet
from rollq_worker.simulation.fleet.episodes import draw_turn, open_episode
from rollq_worker.simulation.fleet.fleet import Fleet
from rollq_worker.simulation.fleet.groups import Group, Groups
from rollq_worker.simulation.fleet.outcome import Counts, Marks, Outcome, Samples

RENEW_EVERY_S = 5.0
"""Seconds between two renewals of a worker's leases."""
REAP_EVERY_S = 1.0
HELD_BACK_S = 0.2
"""A wait that takes longer, for the first turn or a step, finds what was there before journaled."""
LEAST_ROLLOUTS = 200
"""Fewest rollouts that are measured."""
LEAST_BATCHES, FEWEST_BATCHES, MANY_ROLLOUTS = 4, 2, 20_000
"""Batches that are measured; where they have so many rollouts, fewer will do."""
Log = list[tuple[Any, ...]]
"""Calls of the ledger, each with its arguments."""
SHOW_EVERY = 64
"""Rollouts between two reports of the progress."""


class FleetRun:
    """One run. `play` returns what it came to."""

    def __init__(self, fleet: Fleet, costs: Costs, seed: int = 0, log: Log | None = None) -> None:
        """`log` gets the ledger's calls, in the order in which Redis serves them."""
        self.fleet, self.costs, self._log = fleet, costs, log
        self._random = Random(seed)
        self.clock = clock = Clock()
        jobs, trainer, workers = fleet.jobs, fleet.trainer, fleet.workers
        self.groups = Groups(jobs.group_size, trainer.ahead, trainer.groups, trainer.max_staleness)
        self.cores = cores = Cores(clock, fleet.cores, costs.worker.handover_s)
        count = workers.processes
        self._processes = [cores.process(costs.worker.wake_s, costs.worker.switch_s) for _ in range(count)]
        one_each = cores if workers.shared else Cores(clock, fleet.engines.count + 2)
        self._producer, self._consumer = one_each.process(), one_each.process()
        self._engine_cpus = [one_each.process() for _ in range(fleet.engines.count if fleet.engines.cpu_s else 0)]
        self._redis = Server(clock, costs.redis.wake_s)
        on_core = cores.process(costs.redis.wake_s)
        self._redis_cpu: Process | None = on_core if workers.shared else None
        cores.disturb(workers.foreign)
        self._engines = engine_fleet(clock, fleet.engines, self._answered, self._random)
        self._played = [0] * count
        """Number of rollouts that each process plays."""
        self._free: deque[int] = deque(process for _ in range(workers.concurrency) for process in range(count))
        self._queued: deque[Rollout] = deque()
        self._producing = self._wanting = False
        self._wanted_at = 0.0
        self.counts, self.samples = Counts(), Samples()
        self._round_trip_s = fleet.redis.round_trip_s

    def play(self, show: Callable[[int, int], None] = lambda done, total: None, least: int = LEAST_ROLLOUTS) -> Outcome:
        """Play until enough rollouts were measured, after others that were not. `show` gets rollouts: done, of all.

        Raises RollqError when the fleet stands still.
        """
        fleet, counts = self.fleet, self.counts
        batch = fleet.trainer.groups * fleet.jobs.group_size
        bound = fleet.trainer.ahead * fleet.jobs.group_size
        if fleet.trainer.max_staleness is not None:
            bound = (fleet.trainer.max_staleness + 1) * batch
        batches = max(FEWEST_BATCHES * batch, min(LEAST_BATCHES * batch, MANY_ROLLOUTS))
        self._marks = Marks(max(fleet.slots, 2 * batch), max(fleet.slots, bound), max(fleet.slots, batches, least))
        self._show = show
        self._snapshots: list[tuple[float, Counts]] = []
        for process in range(fleet.workers.processes):
            self.clock.at(self._random.uniform(0, RENEW_EVERY_S), self._renew, process)
        self.clock.at(REAP_EVERY_S, self._reap)
        self._produce()
        self._want()
        self.clock.run()
        if len(self._snapshots) < 2:
            raise RollqError(
                f"the simulated fleet stands still after {counts.done} rollouts: no event is left. Is `ahead` at"
                " least a batch?"
            )
        (began, before), (ended, after) = self._snapshots
        found = after - before
        return Outcome.of(fleet, self.costs, ended - began, found, self.samples, after.most_bytes, self.clock.passed)

    # -- the producer

    def _produce(self) -> None:
        if self._producing or not self.groups.room:
            return
        self._producing = True
        clients = self.costs.clients
        seconds = clients.submit_group_s + self.fleet.jobs.group_size * clients.publish_s
        self._producer.run(seconds, self._submit)

    def _submit(self, _: None) -> None:
        redis, group = self.costs.redis, self.groups.enter()
        self._note("submit", group.seq)
        seconds = redis.submit_group_s + group.size * redis.submit_job_s
        self._call(seconds, self._submitted, group)

    def _submitted(self, group: Group) -> None:
        self._producing = False
        self.counts.scripts += 1  # the publication is confirmed
        self._keep(group, group.size * self.costs.redis.job_bytes)
        self._queued.extend(Rollout(group, sample) for sample in range(group.size))
        self._dispatch()
        self._produce()

    # -- a rollout

    def _dispatch(self) -> None:
        while self._queued and self._free:
            rollout, process = self._queued.popleft(), self._free.popleft()
            rollout.process = process
            self._played[process] += 1
            self._count_playing(1)
            self._load(self.costs.redis.message_s)
            self._processes[process].run(self.costs.worker.message_s, self._received, rollout)

    def _received(self, rollout: Rollout) -> None:
        self._note("claim", rollout.group.seq, rollout.sample)
        self.groups.begin(rollout.group)
        self._call(self.costs.redis.claim_s, self._claimed, rollout)

    def _claimed(self, rollout: Rollout) -> None:
        rollout.claimed_at = self.clock.now
        if rollout.group.engine < 0:
            self._engines.assign(rollout.group)
        open_episode(rollout, self.fleet, self._random)
        self._processes[rollout.process].run(self.costs.worker.rollout_s, self._ask, rollout)

    def _ask(self, rollout: Rollout) -> None:
        draw_turn(rollout, self.fleet.jobs, self._random)
        rollout.asked_at = self.clock.now
        self._engines.ask(rollout, rollout.sampled)

    def _answered(self, rollout: Rollout) -> None:
        if self._engine_cpus:  # the replay engine works on cores of its own or the workers'
            self._engine_cpus[rollout.group.engine].run(self.fleet.engines.cpu_s, self._received_turn, rollout)
        else:
            self._received_turn(rollout)

    def _received_turn(self, rollout: Rollout) -> None:
        waited_s = self.clock.now - rollout.asked_at
        self.counts.engine_s += waited_s
        if not rollout.turn:
            self._journal_early("open", rollout, waited_s)
        self._processes[rollout.process].run(self.costs.worker.turn_s, self._stepped, rollout)

    def _stepped(self, rollout: Rollout) -> None:
        if not self.fleet.jobs.environment_s.mean:
            self._acted(rollout)
            return
        seconds = self.fleet.jobs.environment_s.draw(self._random)
        self._journal_early("sampled", rollout, seconds)
        self.clock.at(self.clock.now + seconds, self._acted, rollout)

    def _journal_early(self, name: str, rollout: Rollout, waited_s: float) -> None:
        """What was there before a long wait was journaled meanwhile."""
        if waited_s > HELD_BACK_S:
            self._note_entries(name, rollout, rollout.turn + 1)
            self._load(self.costs.redis.append_s)

    def _acted(self, rollout: Rollout) -> None:
        counts, redis = self.counts, self.costs.redis
        tokens = rollout.sampled + rollout.observed
        rollout.turn += 1
        rollout.tokens += tokens
        counts.turns += 1
        counts.sampled_tokens += rollout.sampled
        wire = tokens * redis.token_bytes
        counts.written_bytes += wire
        self._keep(rollout.group, wire)
        seconds = redis.append_kb_s * wire / 1000
        last = rollout.turn == rollout.turns
        self._note_entries("complete" if last else "append", rollout, rollout.turn)
        if not last:
            if rollout.observed:
                key = ("observed", rollout.group.seq, rollout.sample, rollout.turn)
                rollout.chain = (*rollout.chain, (key, rollout.observed))
            self._call(redis.append_s + seconds, self._ask, rollout)
        else:
            self._keep(rollout.group, redis.rollout_bytes)
            self._call(redis.complete_s + seconds, self._done, rollout)

    def _done(self, rollout: Rollout) -> None:
        counts, now = self.counts, self.clock.now
        counts.done += 1
        counts.rollout_s += now - rollout.claimed_at
        self._count_playing(-1)
        self._engines.leave(rollout)
        self._played[rollout.process] -= 1
        self._free.append(rollout.process)
        if self.groups.end(rollout.group):
            self._take()
        self._look()
        self._dispatch()

    def _count_playing(self, change: int) -> None:
        counts, now = self.counts, self.clock.now
        counts.playing_s += counts.playing * (now - counts.playing_since)
        counts.playing, counts.playing_since = counts.playing + change, now

    def _renew(self, process: int) -> None:
        if playing := self._played[process]:
            self.counts.scripts += 1
            self._load(playing * self.costs.redis.renew_job_s)
        self.clock.at(self.clock.now + RENEW_EVERY_S, self._renew, process)

    def _reap(self, _: None) -> None:
        """One worker's reaper looks for what to publish. What that costs is a part of the message's cost."""
        self.counts.scripts += 1
        self.clock.at(self.clock.now + REAP_EVERY_S, self._reap)

    # -- the trainer

    def _want(self) -> None:
        self._wanting, self._wanted_at = True, self.clock.now
        self._take()
        if self._wanting:  # it was told to wait
            self._note("wait", self.fleet.trainer.groups)
            self._load(self.costs.redis.take_group_s)

    def _take(self) -> None:
        if not self._wanting or not (taken := self.groups.take(self.fleet.trainer.groups)):
            return
        self._wanting = False
        self._note("take", [(group.seq, group.started) for group in taken])
        self._call(self.costs.redis.take_group_s * len(taken), self._read, [taken, 0])

    def _read(self, progress: list[Any]) -> None:
        """Read the trajectories, one group after the other, so that other calls get in between."""
        taken, number = progress
        if number:
            size = taken[number - 1].size
            self._consumer.run(self.costs.clients.take_rollout_s * size, _nothing)
        if number < len(taken):
            progress[1] += 1
            self._note("read", taken[number].seq)
            self._call(self.costs.redis.read_rollout_s * taken[number].size, self._read, progress)
            return
        now, samples = self.clock.now, self.samples
        if not self._snapshots or self._wanted_at >= self._snapshots[0][0]:
            samples.batch_wait_s.append(now - self._wanted_at)
        samples.staleness.extend(self.groups.step - (group.started or 0) for group in taken)
        self.counts.batches += 1
        self.counts.training_s += self.fleet.trainer.step_s
        self.clock.at(now + self.fleet.trainer.step_s, self._trained, taken)

    def _trained(self, taken: list[Group]) -> None:
        seconds = self.fleet.trainer.update_s
        if seconds:
            self._engines.stand_still(seconds)
            self.counts.updating_s += seconds
        self.clock.at(self.clock.now + seconds, self._updated, taken)

    def _updated(self, taken: list[Group]) -> None:
        self.groups.publish()
        self._note("acknowledge")
        self._load(self.costs.redis.ack_group_s * len(taken))
        self.groups.acknowledge(taken)
        self.counts.kept_bytes -= sum(group.bytes for group in taken)
        self._produce()
        self._want()

    # -- Redis, and what is counted

    def _call(self, seconds: float, act: Act, subject: Any) -> None:
        """A call that is waited for."""
        self.counts.calls += 1
        if self._redis_cpu is None:
            self._redis.serve(seconds, self._round_trip_s, act, subject)
        else:
            self._redis_cpu.run(seconds, lambda _: self.clock.at(self.clock.now + self._round_trip_s, act, subject))

    def _load(self, seconds: float) -> None:
        """A call that no rollout waits for."""
        self.counts.calls += 1
        if self._redis_cpu is None:
            self._redis.load(seconds)
        else:
            self._redis_cpu.run(seconds, _nothing)

    def _note(self, *call: Any) -> None:
        self.counts.scripts += call[0] != "read"
        if self._log is not None:
            self._log.append(call)

    def _note_entries(self, name: str, rollout: Rollout, turn: int) -> None:
        self._note(name, rollout.group.seq, rollout.sample, turn, rollout.prompt, rollout.sampled, rollout.observed)

    @property
    def worker_switches(self) -> int:
        """How often a worker has paid `switch_s`."""
        return sum(one.switches for one in self._processes)

    @property
    def wakes(self) -> tuple[int, int]:
        """How often workers and Redis have paid `wake_s`, where Redis shares the workers' cores."""
        assert self._redis_cpu is not None
        return sum(one.wakes for one in self._processes), self._redis_cpu.wakes

    @property
    def redis_s(self) -> float:
        """Seconds for which Redis was busy so far."""
        server = self._redis if self._redis_cpu is None else self._redis_cpu
        return server.busy_s + self.costs.redis.idle * self.clock.now

    def _keep(self, group: Group, size: float) -> None:
        """Redis keeps so many bytes of the group until it is acknowledged."""
        group.bytes += size
        counts = self.counts
        counts.kept_bytes += size
        counts.most_bytes = max(counts.most_bytes, counts.kept_bytes)

    def _look(self) -> None:
        """Take a snapshot where the measurement begins and where it ends."""
        counts = self.counts
        if counts.done % SHOW_EVERY == 0:
            self._show(counts.done, self._marks.last)
        if not self._marks.reached(counts.done, trainer_waits=self._wanting):
            return
        self._count_playing(0)
        idle_s = self.costs.worker.idle * self.clock.now * len(self._processes)
        counts.workers_s = sum(process.busy_s for process in self._processes) + idle_s
        counts.producer_s, counts.consumer_s = self._producer.busy_s, self._consumer.busy_s
        counts.redis_s = self.redis_s
        counts.engines_s = self._engines.busy_s()
        self._snapshots.append((self.clock.now, replace(counts)))
        if len(self._snapshots) == 1:
            self.samples.clear()
        else:
            self.clock.stop()


def _nothing(_: object) -> None:
    pass

"""A small run of a fleet whose ledger calls are then made for real, in the same order, on a real Redis.

It shows that the ledger's scripts do what the simulation takes them to do (groups enter, batches and their age are the
same), and what they cost on this machine for this mix of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollq.errors import RollqError
from rollq.processes.embedded_redis import EmbeddedRedis
from rollq_worker.simulation.costs.real_ledger import MadeUp, Meter, RealLedger
from rollq_worker.simulation.costs.table import Costs
from rollq_worker.simulation.fleet.fleet import Fleet
from rollq_worker.simulation.fleet.run import FleetRun, Log

SLOTS = 64
"""Rollouts at a time in the small run, at most."""

LEAST_ROLLOUTS = 32


@dataclass(frozen=True, slots=True)
class Rehearsal:
    rollouts: int
    calls: int
    """Calls of the ledger that were made; the simulation made the same."""
    cpu_s: float
    """CPU of Redis for them."""
    table_cpu_s: float
    """What the table of costs gives for them, made one at a time."""
    batches: int

    @property
    def factor(self) -> float:
        """How many times the table's costs Redis needed."""
        return self.cpu_s / self.table_cpu_s if self.table_cpu_s else 1.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "factor": self.factor}


def rehearse(fleet: Fleet, costs: Costs, seed: int = 0) -> Rehearsal:
    """Raises SettingsError without a Redis server on this machine, RollqError when the ledger does something else."""
    small = fleet.scaled(SLOTS) if fleet.slots > SLOTS else fleet
    small = replace(small, workers=replace(small.workers, shared=False))
    # Celery's messages and the renewals of leases are no calls of the log, which are made without pauses.
    alone = costs.redis.times(costs.redis.alone)
    redis = replace(alone, message_s=0.0, renew_job_s=0.0, wake_s=0.0, idle=0.0)
    counted = replace(costs, redis=redis)
    log: Log = []
    run = FleetRun(small, counted, seed, log)
    run.play(least=LEAST_ROLLOUTS)
    with EmbeddedRedis() as server:
        meter, trainer = Meter(server.url), small.trainer
        for name in ("compile", "rehearsal"):  # the first time, Redis compiles the scripts
            ledger = RealLedger(
                server.url, name, small.jobs.group_size, trainer.ahead, trainer.groups, trainer.max_staleness
            )
            calls = log[:200] if name == "compile" else log
            replay = _Replay(ledger, MadeUp(seed))
            prepared = [(call, replay.blobs(call)) for call in calls]
            before = meter.cpu_s()
            for call, blobs in prepared:
                replay.make(call, blobs)
            cpu_s = meter.cpu_s() - before
            ledger.close()
        meter.close()
    names = [call[0] for call in log]
    return Rehearsal(names.count("complete"), len(log), cpu_s, run.redis_s, names.count("take"))


class _Replay:
    def __init__(self, ledger: RealLedger, made_up: MadeUp) -> None:
        self._ledger, self._made_up = ledger, made_up
        self._openings: dict[int, list[bytes]] = {}
        """By group: header and first prompt, which its members share."""
        self._begun: dict[tuple[int, int], list[bytes]] = {}
        """By group and sample: the entries of its turn that are not written yet."""

    def blobs(self, call: Sequence[Any]) -> list[bytes]:
        """The journal's entries that the call carries."""
        if call[0] not in ("open", "sampled", "append", "complete"):
            return []
        name, group, sample, turn, prompt, sampled, observed = call
        made_up, job = self._made_up, (group, sample)
        if group not in self._openings:
            self._openings[group] = made_up.opening(prompt)
        if (entries := self._begun.pop(job, None)) is None:
            entries = [*(self._openings[group] if turn == 1 else []), *made_up.turn(turn - 1, sampled, observed)]
        if name in ("open", "sampled"):
            written = len(self._openings[group]) if name == "open" else len(entries) - 1
            self._begun[job] = entries[written:]
            return entries[:written]
        return [*entries, made_up.end()] if name == "complete" else entries

    def make(self, call: Sequence[Any], blobs: Sequence[bytes]) -> None:
        ledger = self._ledger
        match call:
            case ["submit", group]:
                if not ledger.submit(group):
                    raise RollqError(f"the ledger has no room for group {group}, and the simulation has")
            case ["claim", group, sample]:
                ledger.claim(group, sample)
            case ["open" | "sampled" | "append", group, sample, *_]:
                ledger.append(group, sample, blobs)
            case ["complete", group, sample, turns, *_]:
                ledger.complete(group, sample, blobs, turns, 0)
            case ["wait", groups]:
                if ledger.take(groups):
                    raise RollqError(f"the ledger hands out {groups} groups, and the simulation none")
            case ["take", expected]:
                taken = ledger.take(len(expected))
                if taken != sorted(expected):
                    raise RollqError(f"the ledger hands out groups {taken}, and the simulation {expected}")
            case ["read", group]:
                ledger.read([group])
            case ["acknowledge"]:
                ledger.publish()
                ledger.acknowledge()

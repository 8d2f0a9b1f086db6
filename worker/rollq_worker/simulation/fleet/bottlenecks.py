"""What limits a simulated fleet, now and when it grows, with a remedy for each limit.

When a fleet grows, engines, worker processes and their cores, the batch and `ahead` grow with it. One Redis, one
producer and one consumer process do not, so their load grows with the fleet: twice the rollouts are twice the calls.
It is what the simulation's own rates give for a fleet of another size; it is not played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollq_worker.simulation.fleet.fleet import Fleet
from rollq_worker.simulation.fleet.outcome import Outcome

FULL = 0.95
"""Share of its time from which on something counts as the limit."""
PLANNED = 0.7
"""Share to plan with: waits grow without bound as a server gets full."""
SIZES = (10_000, 100_000, 1_000_000)

REMEDIES = {
    "engines": "engines are what a fleet should wait for: add engines for more",
    "slots": "every slot plays: raise --concurrency, or add worker processes, if the engines can take more",
    "groups in flight": "slots are free, and no group may enter: raise `ahead`, or the bound on staleness",
    "trainer": "the trainer is always busy: a faster step or weight update, or fewer engines",
    "worker processes": "one process uses one core: add worker processes",
    "worker cores": "give the worker processes more cores",
    "Redis": "a Redis for each run, or the broker on another one (docs/scale.md)",
    "producer": "submit from several processes, each with a source of its own",
    "consumer": "decode batches in several consumers, or take fewer tokens a rollout",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """The first limit of a fleet of that size."""

    rollouts: int
    name: str
    load: float
    """Share of its time; above 1 the fleet cannot work."""

    @property
    def remedy(self) -> str:
        return REMEDIES[self.name]


def limit_now(fleet: Fleet, outcome: Outcome) -> Limit:
    """What the played fleet waited for most."""
    loads = {**_fixed(outcome), **_growing(fleet, outcome)}
    name = max(loads, key=lambda name: loads[name])
    if loads[name] < FULL:
        name = "slots" if outcome.playing >= FULL * outcome.slots else "groups in flight"
    return Limit(round(outcome.playing), name, loads.get(name, outcome.playing / outcome.slots))


def limits(outcome: Outcome, sizes: Sequence[int] = SIZES) -> list[Limit]:
    """The part that one process does with the highest load, for fleets that play so many rollouts at a time."""
    found = []
    for size in sizes:
        loads = {name: load * size / outcome.playing for name, load in _fixed(outcome).items()}
        name = max(loads, key=lambda name: loads[name])
        found.append(Limit(size, name, loads[name]))
    return found


def _fixed(outcome: Outcome) -> dict[str, float]:
    """Loads of what does not grow with the fleet."""
    return {"Redis": outcome.redis_busy, "producer": outcome.producer_busy, "consumer": outcome.consumer_busy}


def _growing(fleet: Fleet, outcome: Outcome) -> dict[str, float]:
    loads = {
        "trainer": outcome.trainer_busy,
        "worker processes": outcome.worker_busy,
        "worker cores": outcome.worker_cores / fleet.cores,
    }
    if fleet.engines.shape is not None:
        loads["engines"] = 1 - outcome.engine_idle
    return loads

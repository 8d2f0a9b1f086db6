"""Measures what the ledger's calls cost Redis, in a small and in a large run, with a real server and its own scripts.

The cost of a call is the CPU time of the whole server process, so reading the request and writing the file count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from typing import TypeVar

from rollq.processes.embedded_redis import EmbeddedRedis
from rollq_worker.simulation.costs.real_ledger import MadeUp, Meter, RealLedger
from rollq_worker.simulation.costs.table import ClientCosts, RedisCosts

SIZE = 8
SMALL, LARGE = 16, 10_000
"""Jobs in the runs."""
ROUNDS, GROUPS = 5, 8
"""Groups that are measured at a time, and how often."""
PROMPT, TURNS, SAMPLED, OBSERVED = 4500, 8, 90, 200
LONG = 8
"""How many times the tokens of a turn a long one has, from which follows what a kilobyte costs."""

Phase = dict[str, float]
T = TypeVar("T")


def measure_ledger(jobs: int = LARGE) -> tuple[RedisCosts, ClientCosts, str]:
    """Costs in a small run, with the growth in one of so many jobs; the server's version."""
    with EmbeddedRedis() as server:
        meter = Meter(server.url)
        small, large = _Measured(server.url, meter, "small", SMALL), _Measured(server.url, meter, "large", jobs)
        small.round()  # Redis compiles the scripts
        rounds = [(small.round(), large.round()) for _ in range(ROUNDS)]
        version = meter.version()
        for one in (small, large):
            one.close()
        meter.close()
    # The least, because whatever else happens on the machine only adds to it.
    few, many = ({name: min(both[size][name] for both in rounds) for name in rounds[0][size]} for size in (0, 1))
    growth = {name: many[name] / few[name] for name in GROWING if few[name] > 0}
    clients = ClientCosts(submit_group_s=few["submit client"], take_rollout_s=few["read client"])
    return replace(_costs(few), growth=growth), clients, version


def _costs(one: Phase) -> RedisCosts:
    job = max(0.0, one["submit"] - one["submit of one"]) / (SIZE - 1)
    kilobyte = max(0.0, one["long"] - one["append"]) / (one["long kB"] - one["append kB"])
    return RedisCosts(
        submit_group_s=max(0.0, one["submit"] - SIZE * job),
        submit_job_s=job,
        claim_s=one["claim"],
        append_s=max(0.0, one["append"] - one["append kB"] * kilobyte),
        append_kb_s=kilobyte,
        complete_s=max(0.0, one["complete"] - one["append kB"] * kilobyte),
        renew_job_s=one["renew"],
        take_group_s=one["take"],
        read_rollout_s=one["read"],
        ack_group_s=one["ack"],
        job_bytes=one["job bytes"],
    )


GROWING = ("submit", "claim", "append", "complete", "take", "ack")


class _Measured:
    """One run, in which groups are played step by step, all jobs of a step one after the other."""

    def __init__(self, url: str, meter: Meter, run: str, jobs: int) -> None:
        self._meter = meter
        self._ledger = RealLedger(url, run, SIZE, 0)
        self._alone = RealLedger(url, f"{run}-alone", 1, 0)
        self._made_up = MadeUp()
        self._groups = 0
        for _ in range(jobs // SIZE):
            self._groups += 1
            self._ledger.submit(self._groups)

    def round(self) -> Phase:
        """Seconds of the server's CPU for one call of each kind, and bytes."""
        first, self._groups = self._groups + 1, self._groups + GROUPS
        groups = range(first, self._groups + 1)
        jobs = [(group, sample) for group in groups for sample in range(SIZE)]
        found: Phase = {}
        ledger, made_up = self._ledger, self._made_up
        began, before = time.process_time(), self._meter.bytes()
        found["submit"] = self._each(groups, ledger.submit)
        found["submit client"] = (time.process_time() - began) / GROUPS
        found["job bytes"] = (self._meter.bytes() - before) / len(jobs)
        found["submit of one"] = self._each(groups, self._alone.submit)
        found["claim"] = self._each(jobs, lambda job: ledger.claim(*job))
        opening = {group: made_up.opening(PROMPT) for group in groups}
        turns = [made_up.turn(number, SAMPLED, OBSERVED) for number in range(TURNS - 2)]
        long = made_up.turn(TURNS - 2, LONG * SAMPLED, LONG * OBSERVED)
        for group, sample in jobs:
            ledger.append(group, sample, [*opening[group], *turns[0]])
        found["append"] = median(self._each(jobs, self._appending(turn)) for turn in turns[1:])
        found["append kB"] = sum(map(len, turns[1])) / 1000
        found["long"] = self._each(jobs, self._appending(long))
        found["long kB"] = sum(map(len, long)) / 1000
        renewals = 8
        found["renew"] = self._each(range(renewals), lambda _: ledger.renew()) / len(jobs)
        last = [*made_up.turn(TURNS - 1, SAMPLED, OBSERVED), made_up.end()]
        found["complete"] = self._each(jobs, lambda job: ledger.complete(*job, last, TURNS, 7000))
        taken: list[int] = []
        found["take"] = self._each(groups, lambda _: taken.extend(group for group, _ in ledger.take(1)))
        began = time.process_time()
        found["read"] = self._each(taken, lambda group: ledger.read([group])) / SIZE
        found["read client"] = (time.process_time() - began) / len(jobs)
        found["ack"] = self._each(range(GROUPS), ledger.acknowledge)
        return found

    def _appending(self, blobs: list[bytes]) -> Callable[[tuple[int, int]], None]:
        return lambda job: self._ledger.append(*job, blobs)

    def _each(self, subjects: Iterable[T], call: Callable[[T], object]) -> float:
        """Seconds of the server's CPU for one call."""
        count, began = 0, self._meter.cpu_s()
        for subject in subjects:
            call(subject)
            count += 1
        return max(0.0, self._meter.cpu_s() - began) / count

    def close(self) -> None:
        self._ledger.close()
        self._alone.close()

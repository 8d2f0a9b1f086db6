"""The fleet at one moment, as a value: Redis, live workers, their engines, and runs. All that shows
it reads it here.

A look costs Redis a few calls, and three round trips for each run that is read, whatever the number
of its jobs.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rollq.errors import LedgerError
from rollq.ledger.keys import Keys
from rollq.ledger.reader import LedgerReader, runs, runs_since
from rollq.ledger.workers.live_workers import (
    AWAY,
    OUTDATED,
    PAUSED,
    READY,
    STALLED,
    EngineUse,
    LiveWorker,
    known_workers,
)
from rollq.ledger.workers.reaping import ActiveRuns
from rollq.servers.health import server_info
from rollq.servers.refusal import guarded, why_no_writes
from rollq.snapshot.run import RunSnapshot, read_run

MOST_RUNS = 20
"""Number of runs that are read: those with work, then the newest."""
MOST_ACTIVE = 200
"""Number of runs with jobs that are compared, the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """State of Redis: its clock, its memory, and its trouble."""

    at: float
    """Redis's clock in Unix seconds."""
    ping_ms: float
    """Milliseconds of one call."""
    used: int | None = None
    """Bytes of memory; None where it does not tell."""
    limit: int | None = None
    """Redis's maxmemory in bytes. None without one, or if Redis does not tell."""
    trouble: str = ""
    """Why it takes no writes, and the remedy; empty when it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine, as all live workers together say."""

    url: str
    state: str
    """READY, AWAY, PAUSED, STALLED or OUTDATED, as most of its workers see it."""
    workers: int
    episodes: int
    running: int | None
    queued: int | None
    token_usage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything at one moment."""

    server: Server
    workers: Sequence[LiveWorker]
    lost: Mapping[str, float] = field(default_factory=dict)
    """Dead workers that did not sign off, and the seconds since they were last heard of."""
    names: Sequence[str] = ()
    """All runs, the oldest first, where the one that was asked for does not exist."""
    runs: Sequence[RunSnapshot] = ()
    """Runs that were read."""
    more_runs: int = 0
    """Number of other runs."""
    unreadable: Sequence[str] = ()
    """Why runs could not be read."""

    @property
    def engines(self) -> Sequence[Engine]:
        """The engines that workers use, by address."""
        uses: dict[str, list[EngineUse]] = {}
        for worker in self.workers:
            for engine in worker.engines:
                uses.setdefault(engine.url, []).append(engine)
        return [_engine(url, uses[url]) for url in sorted(uses)]

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.workers)

    @property
    def in_flight(self) -> int:
        return sum(worker.busy for worker in self.workers)

    @property
    def turns_s(self) -> float:
        return sum(worker.turns_s for worker in self.workers)

    @property
    def tokens_s(self) -> float:
        return sum(worker.tokens_s for worker in self.workers)


def read_fleet(connection: Any, run: str | None = None, oldest: int = 1) -> FleetSnapshot:
    """The fleet with this run, or with the MOST_RUNS runs that matter most. `oldest`: see
    `read_run`. A run that cannot be read is among the `unreadable`. Raises LedgerError, and redis's
    errors when Redis is away.
    """
    fleet = read_workers(connection)
    names = [run] if run else _by_work(connection)
    snapshots = []
    unreadable = []
    for name in names[:MOST_RUNS]:
        try:
            snapshots.append(read_run(LedgerReader(connection, name), fleet.server.at, oldest))
        except LedgerError as e:
            unreadable.append(str(e))
    more = max(0, len(names) - MOST_RUNS)
    return replace(fleet, runs=snapshots, more_runs=more, unreadable=unreadable)


def read_one_run(reader: LedgerReader, oldest: int = 1) -> FleetSnapshot:
    """The fleet with this run, and with the names of all runs if it does not exist. Raises what
    `read_fleet` raises, and LedgerError if the run cannot be read.
    """
    fleet = read_workers(reader.redis)
    run = read_run(reader, fleet.server.at, oldest)
    return replace(fleet, runs=[run], names=() if run.exists else runs(reader.redis))


def read_workers(connection: Any) -> FleetSnapshot:
    """The fleet without its runs."""
    server = _server(connection)
    workers = known_workers(connection)
    return FleetSnapshot(
        server=server,
        workers=[worker for worker in workers if worker.is_live],
        lost={worker.name: worker.age_s for worker in workers if not worker.is_live},
    )


def each_run(connection: Any) -> Iterator[tuple[str, float, Mapping[str, Any] | LedgerError]]:
    """All runs, the oldest first: when each began (Unix seconds), and its counts, or why they
    cannot be read. Raises LedgerError for the list of runs.
    """
    for name, began in runs_since(connection).items():
        try:
            yield name, began, LedgerReader(connection, name).stats()
        except LedgerError as e:
            yield name, began, e


def _server(connection: Any) -> Server:
    info = server_info(connection)
    began = time.perf_counter()
    seconds, micros = guarded("Redis's clock", connection.time)
    ping_ms = (time.perf_counter() - began) * 1000
    return Server(
        at=seconds + micros / 1e6,
        ping_ms=ping_ms,
        used=info.get("used_memory"),
        limit=info.get("maxmemory") or None,
        trouble=why_no_writes(info),
    )


def _by_work(connection: Any) -> list[str]:
    """All runs: those with most jobs in play, then the newest."""
    newest = runs(connection)[::-1]
    active = set(ActiveRuns(connection).names()) & set(newest)
    working = sorted(active, key=newest.index)[:MOST_ACTIVE]
    pipe = connection.pipeline(transaction=False)
    for name in working:
        pipe.zcard(Keys(name).leased)
    leased: dict[str, int] = {}
    for name, reply in zip(working, pipe.execute(raise_on_error=False), strict=True):
        leased[name] = reply if isinstance(reply, int) else 0
    busiest = sorted(working, key=lambda name: -leased[name])
    return list(dict.fromkeys([*busiest, *newest]))


def _engine(url: str, uses: Sequence[EngineUse]) -> Engine:
    states = Counter(use.state for use in uses)
    most = partial(max, default=None)  # workers asked at different moments: the busiest answer
    return Engine(
        url=url,
        state=max((READY, PAUSED, STALLED, OUTDATED, AWAY), key=lambda state: states[state]),
        workers=len(uses),
        episodes=sum(use.episodes for use in uses),
        running=most(use.running for use in uses if use.running is not None),
        queued=most(use.queued for use in uses if use.queued is not None),
        token_usage=most(use.token_usage for use in uses if use.token_usage is not None),
    )

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
    SILENT_S,
    STALLED,
    EngineUse,
    LiveWorker,
    live_workers,
)
from rollq.ledger.workers.reaping import ActiveRuns
from rollq.servers.cluster import ClusterClient
from rollq.servers.health import server_infos
from rollq.servers.refusal import guarded, no_answer, why_no_writes
from rollq.snapshot.run import RunSnapshot, read_run

MOST_RUNS = 20
"""Number of runs that are read: those with work, then the newest."""
MOST_ACTIVE = 200
"""Number of runs with jobs that are compared, the newest ones."""
LOST_S = 60.0
"""Seconds for which a worker that is gone without a word is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How Redis does, and whether it takes writes. Of a cluster there are many, which tell no
    memory here.
    """

    at: float
    """Its clock, Unix seconds."""
    ping_ms: float
    """Milliseconds of one call."""
    used: int | None = None
    """Bytes of memory; None where it does not tell."""
    limit: int | None = None
    """Its maxmemory in bytes; None: there is none, or it does not tell."""
    trouble: str = ""
    """Why it takes no writes, and the remedy; empty when it does. Of a cluster: the server that has
    the run, or all of them where no run was named.
    """
    away: Sequence[str] = ()
    """Servers of a cluster that do not answer."""


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
    """Workers that were live and are gone without a word, and the seconds since they were last
    heard of.
    """
    names: Sequence[str] = ()
    """All runs, the oldest first, where the one that was asked for does not exist."""
    runs: Sequence[RunSnapshot] = ()
    """Those that were read."""
    more_runs: int = 0
    """Number of other runs."""
    unreadable: Sequence[str] = ()
    """Why runs could not be read."""

    @property
    def engines(self) -> Sequence[Engine]:
        """By address."""
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
    fleet = read_workers(connection, run)
    shown = [run] if run else _by_work(connection, fleet.server.away)
    found, unreadable = [], []
    for name in shown[:MOST_RUNS]:
        try:
            found.append(
                read_run(_reader(connection, name, fleet.server.away), fleet.server.at, oldest)
            )
        except LedgerError as e:
            unreadable.append(str(e))
    more = max(0, len(shown) - MOST_RUNS)
    return replace(fleet, runs=found, more_runs=more, unreadable=unreadable)


def read_one_run(reader: LedgerReader, oldest: int = 1) -> FleetSnapshot:
    """The fleet with this run, and with the names of all runs if it does not exist. Raises what
    `read_fleet` raises, and LedgerError if the run cannot be read.
    """
    fleet = read_workers(reader.redis, reader.run)
    run = read_run(reader, fleet.server.at, oldest)
    return replace(fleet, runs=[run], names=() if run.known else runs(reader.redis))


def read_workers(connection: Any, run: str | None = None) -> FleetSnapshot:
    """The fleet without its runs. With `run`, whoever looks cares for this one alone."""
    return FleetSnapshot(server=_server(connection, run), workers=live_workers(connection))


def each_run(connection: Any) -> Iterator[tuple[str, float, Mapping[str, Any] | LedgerError]]:
    """All runs, the oldest first: when each began (Unix seconds), and its counts, or why they
    cannot be read. Raises LedgerError for the list of runs.
    """
    away = _away(server_infos(connection))
    for name, began in runs_since(connection).items():
        try:
            yield name, began, _reader(connection, name, away).stats()
        except LedgerError as e:
            yield name, began, e


class FleetReader:
    """Reads the fleet again and again; it remembers the workers that it saw."""

    def __init__(self, connection: Any, run: str | None = None) -> None:
        """With `run`, of this run only."""
        self._read = partial(read_fleet, connection, run)
        self._seen: dict[str, tuple[float, bool]] = {}
        """When each worker was last heard of, by the monotonic clock, and whether it was silent
        then.
        """

    def read(self) -> FleetSnapshot:
        """Raises what `read_fleet` raises."""
        found = self._read()
        return replace(found, lost=self._lost(found.workers))

    def _lost(self, workers: Sequence[LiveWorker]) -> dict[str, float]:
        now = time.monotonic()
        for worker in workers:
            self._seen[worker.name] = now - worker.age_s, worker.age_s >= SILENT_S
        live = {worker.name for worker in workers}
        # One that signed off was not silent before.
        self._seen = {
            name: (at, silent)
            for name, (at, silent) in self._seen.items()
            if name in live or (silent and now - at < LOST_S)
        }
        return {name: now - at for name, (at, _) in self._seen.items() if name not in live}


def _server(connection: Any, run: str | None) -> Server:
    told = server_infos(connection)
    began = time.perf_counter()
    seconds, micros = guarded("Redis's clock", connection.time)
    ping_ms = (time.perf_counter() - began) * 1000
    only, concerned = told.get(""), {_server_of(connection, run)} if run else set(told)
    info = only if isinstance(only, dict) else {}
    return Server(
        at=seconds + micros / 1e6,
        ping_ms=ping_ms,
        used=info.get("used_memory"),
        limit=info.get("maxmemory") or None,
        trouble=". ".join(
            _troubles({node: said for node, said in told.items() if node in concerned})
        ),
        away=_away(told),
    )


def _troubles(told: Mapping[str, Mapping[str, Any] | Exception]) -> Iterator[str]:
    """Why servers take no writes."""
    for node, said in told.items():
        if isinstance(said, Exception):
            yield (
                f"Redis at {node} does not answer ({str(said).rstrip('.')}). "
                f"{no_answer(said) or 'Start it again'}"
            )
        elif why := why_no_writes(said):
            yield f"at {node}, {why}" if node else why


def _away(told: Mapping[str, Mapping[str, Any] | Exception]) -> Sequence[str]:
    return [node for node, said in told.items() if isinstance(said, Exception)]


def _server_of(connection: Any, run: str) -> str | None:
    """The server of a cluster that has the run, None when none has; empty when there is
    only one.
    """
    return connection.server_of(Keys(run).meta) if isinstance(connection, ClusterClient) else ""


def _reader(connection: Any, run: str, away: Sequence[str]) -> LedgerReader:
    """Raises LedgerError for a run of a server that is away, or of none: a call would wait for it,
    and others can be read.
    """
    if (node := _server_of(connection, run)) is None:
        raise LedgerError(
            f"run {run}: no server of the cluster has its slot. `redis-cli --cluster "
            "fix` gives it one"
        )
    if node in away:
        raise LedgerError(f"run {run}: Redis at {node} does not answer. Start it again")
    return LedgerReader(connection, run)


def _by_work(connection: Any, away: Sequence[str]) -> list[str]:
    """All runs: those with most jobs in play, then the newest."""
    newest = runs(connection)[::-1]
    active = set(ActiveRuns(connection).names()) & set(newest)
    working = sorted(active, key=newest.index)[:MOST_ACTIVE]
    asked = [name for name in working if _server_of(connection, name) not in (None, *away)]
    pipe = connection.pipeline(transaction=False)
    for name in asked:
        pipe.zcard(Keys(name).leased)
    leased = dict(zip(asked, pipe.execute(raise_on_error=False), strict=True))
    counts = {name: count if isinstance(count, int) else 0 for name, count in leased.items()}
    return list(dict.fromkeys([*sorted(working, key=lambda name: -counts.get(name, 0)), *newest]))


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

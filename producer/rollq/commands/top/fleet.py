"""What `rollq top` shows: runs, workers, engines and Redis at one moment, and the reading of it.

A look costs Redis a few calls for each run that is shown, whatever the number of its jobs. It knows nothing of
terminals.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollq.client.waits import explain, holdup
from rollq.client.waits.troubles import nothing_heard
from rollq.commands.top.server import Server, read_server
from rollq.errors import LedgerError
from rollq.job import Purpose
from rollq.ledger.keys import Keys
from rollq.ledger.reader import LedgerReader, runs
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

MOST_RUNS = 20
"""Number of runs that are read: those with work, then the newest."""
MOST_ACTIVE = 200
"""Number of runs with jobs that are compared, the newest ones."""
EXPLAINED = 5
"""Number of runs of which is asked what holds them up: those with work, then the newest."""
LOST_S = 60.0
"""Seconds for which a worker that is gone without a word is shown."""
OF_GROUP = ("at", "started")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run, as `LedgerReader.stats` counts it."""

    run: str
    sealed: bool
    submitted: int
    queued: int
    leased: int
    done: int
    dead: int
    groups_open: int
    groups_ready: int
    groups_held: int
    groups_acked: int
    reward_mean: float | None
    stops: Mapping[str, int]
    failures: Mapping[str, int]
    step: int | None
    """The step that was published last."""
    max_staleness: int | None
    oldest: str | None
    """The open group that was submitted first."""
    oldest_s: float | None
    """Seconds since then."""
    staleness: int | None
    """Steps that were published since that group began, or the oldest one that is ready if that is older."""

    @property
    def has_work(self) -> bool:
        return bool(self.queued or self.leased or self.groups_ready or self.groups_held)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNow:
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
class FleetNow:
    """Everything at one moment."""

    at: float
    """Unix seconds on Redis's clock."""
    server: Server
    runs: Sequence[RunNow]
    more_runs: int
    """Number of other runs."""
    unreadable: Sequence[str]
    """Why runs could not be read."""
    workers: Sequence[LiveWorker]
    lost: dict[str, float]
    """Workers that were live and are gone without a word, and the seconds since they were last heard of."""
    engines: Sequence[EngineNow]
    holdup: str
    """What holds it up; empty when nothing is pending."""

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


class FleetReader:
    """Reads the fleet again and again; it remembers the workers that it saw."""

    def __init__(self, connection: Any, run: str | None = None) -> None:
        """With `run`, of this run only."""
        self._redis = connection
        self._run = run
        self._seen: dict[str, tuple[float, bool]] = {}
        """When each worker was last heard of, by the monotonic clock, and whether it was silent then."""

    def read(self) -> FleetNow:
        """Raises LedgerError, and redis's errors when Redis is away."""
        server = read_server(self._redis)
        workers = live_workers(self._redis)
        lost = self._lost(workers)
        names = [self._run] if self._run else self._names()
        found, unreadable = self._runs(names[:MOST_RUNS], server.at)
        return FleetNow(
            at=server.at,
            server=server,
            runs=found,
            more_runs=max(0, len(names) - MOST_RUNS),
            unreadable=unreadable,
            workers=workers,
            lost=lost,
            engines=_engines(workers),
            holdup=server.trouble or next(iter(unreadable), "") or self._holdup(found, workers, lost),
        )

    def _names(self) -> list[str]:
        """Those of which most is being played, then the newest."""
        newest = runs(self._redis)[::-1]
        active = set(ActiveRuns(self._redis).names()) & set(newest)
        working = sorted(active, key=newest.index)[:MOST_ACTIVE]
        pipe = self._redis.pipeline(transaction=False)
        for name in working:
            pipe.zcard(Keys(name).leased)
        leased = dict(zip(working, pipe.execute(raise_on_error=False), strict=True))
        counts = {name: count if isinstance(count, int) else 0 for name, count in leased.items()}
        return list(dict.fromkeys([*sorted(working, key=lambda name: -counts[name]), *newest]))

    def _runs(self, names: Sequence[str], at: float) -> tuple[list[RunNow], list[str]]:
        found, unreadable = [], []
        for name in names:
            try:
                found.append(_run(LedgerReader(self._redis, name), at))
            except LedgerError as e:
                unreadable.append(str(e))
        return found, unreadable

    def _holdup(self, found: Sequence[RunNow], workers: Sequence[LiveWorker], lost: dict[str, float]) -> str:
        """A problem of any run, or what the first one with work waits for; before it, workers that may be dead."""
        heard = [worker for worker in workers if worker.age_s < SILENT_S]
        silent = lost | {worker.name: worker.age_s for worker in workers if worker.age_s >= SILENT_S}
        dead = nothing_heard(silent) if heard else ""
        return " ".join(filter(None, (dead, self._of_runs(found, heard or workers))))

    def _of_runs(self, found: Sequence[RunNow], workers: Sequence[LiveWorker]) -> str:
        # Also in a run without work a consumer or a producer may wait.
        order = sorted(found, key=lambda run: not run.has_work)
        readers = [LedgerReader(self._redis, run.run) for run in order[:EXPLAINED]]
        for purpose in Purpose:
            for reader in readers:
                if text := explain(reader, purpose, workers=workers, refuses=""):
                    return text
        return next(filter(None, (holdup(reader, workers=workers, refuses="") for reader in readers)), "")

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


def _run(reader: LedgerReader, at: float) -> RunNow:
    stats = reader.stats()
    policy, admission = stats["policy"], stats["admission"]
    step = policy["step"] if policy else None
    oldest, submitted, started = _oldest(reader) if stats["groups_open"] or stats["groups_ready"] else (None, None, ())
    return RunNow(
        **{name: stats[name] for name in RunNow.__dataclass_fields__ if name in stats},
        step=step,
        max_staleness=admission["max_staleness"] if admission else None,
        oldest=oldest,
        oldest_s=None if submitted is None else max(0.0, at - submitted),
        staleness=None if step is None else max((step - begun for begun in started), default=None),
    )


def _oldest(reader: LedgerReader) -> tuple[str | None, float | None, list[int]]:
    """The oldest open group, when it was submitted, and the steps at which it and the oldest ready one began."""
    prefix = reader.keys.prefix
    keys = [f"{prefix}{place}:{purpose}" for place in ("open", "ready") for purpose in Purpose]
    pipe = reader.redis.pipeline(transaction=False)
    for key in keys:
        pipe.zrange(key, 0, 0, withscores=True)
    found = reader.scripts.guard("groups", pipe.execute)
    firsts = [min((row[0][::-1] for row in rows if row), default=None) for rows in (found[:2], found[2:])]
    names = [first[1].decode("utf-8", "replace") for first in firsts if first]
    for name in names:
        pipe.hmget(reader.keys.group(name), OF_GROUP)
    records = reader.scripts.guard("groups", pipe.execute)
    started = [int(step) for _, step in records if step and step.isdigit()]
    if firsts[0] is None:
        return None, None, started
    return names[0], _number(records[0][0]), started


def _number(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _engines(workers: Sequence[LiveWorker]) -> list[EngineNow]:
    uses: dict[str, list[EngineUse]] = {}
    for worker in workers:
        for engine in worker.engines:
            uses.setdefault(engine.url, []).append(engine)
    return [_engine(url, uses[url]) for url in sorted(uses)]


def _engine(url: str, uses: Sequence[EngineUse]) -> EngineNow:
    states = Counter(use.state for use in uses)
    most = partial(max, default=None)  # workers asked at different moments: the busiest answer
    return EngineNow(
        url=url,
        state=max((READY, PAUSED, STALLED, OUTDATED, AWAY), key=lambda state: states[state]),
        workers=len(uses),
        episodes=sum(use.episodes for use in uses),
        running=most(use.running for use in uses if use.running is not None),
        queued=most(use.queued for use in uses if use.queued is not None),
        token_usage=most(use.token_usage for use in uses if use.token_usage is not None),
    )

"""The live workers: who plays at this moment, which queues, with which tokenizer, and on which
engines.

Every worker registers itself every few seconds in one hash of the ledger's Redis, and signs off
when it ends. An entry that was not renewed for LIVE_S seconds of Redis's clock is a dead worker's.
Reapers and people decide with it whether a run can be played at all; no job's state depends on it.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rollq.ledger.keys import WORKERS
from rollq.ledger.scripts import lua_file
from rollq.servers.refusal import guarded

if TYPE_CHECKING:
    import redis

REMEDY = "Delete that key: live workers register again"
"""The remedy that an error names."""
REGISTER_EVERY_S = 5.0
"""Seconds after which a worker registers itself again."""
LIVE_S = 15
"""Seconds without a registration after which a worker counts as dead."""
LOST_S = 60
"""Seconds without a registration after which a dead worker is forgotten."""
SILENT_S = 8
"""Seconds without a registration after which a worker may well be dead."""
READY, AWAY, PAUSED, STALLED, OUTDATED = "ready", "away", "paused", "stalled", "outdated"
"""States of an engine, as a worker sees it. A paused one generates nothing until it is told to
continue. A stalled one has requests, generates nothing, and does not say why. An outdated one
serves weights that a run does not take, or lacks its adapter.
"""
MODEL_AWAY = "the engine of"
"""Beginning of the name of what an episode waits for (`Wait.what`) while all engines of another
model than the policy are away or paused.
"""
MAX_WAITS = 100
"""Number of waits that a worker tells of, the longest ones."""
MAX_ENGINES = 64
"""Number of engines that a worker tells of."""
MAX_LEFT_ALONE = 20
"""Number of runs that a worker tells that it leaves to others."""


class Wait(NamedTuple):
    """The wait of one episode."""

    job_id: str
    what: str
    """`engine`, `redis`, `start`, `the user`, MODEL_AWAY with a model's name, or the call of the
    environment, such as `environment.step(get_order)`.
    """
    seconds: float
    """Seconds that it has been waiting."""


class EngineUse(NamedTuple):
    """One engine, as a worker sees it. The load is the engine's own, with the requests of all
    workers; None where it is not known.
    """

    url: str
    """Without a password."""
    state: str
    """READY, AWAY, PAUSED, STALLED or OUTDATED."""
    episodes: int
    """Episodes of this worker that play there."""
    running: int | None = None
    """Requests that the engine generates for."""
    queued: int | None = None
    """Requests in its own queue."""
    token_usage: float | None = None
    """Share of its KV cache that running requests hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A live worker's entry."""

    name: str
    queues: tuple[str, ...]
    """The queues that it takes jobs from (`Job.queue`)."""
    tokenizer: str
    """Hash of its tokenizer."""
    template: str
    """Hash of its chat template."""
    engine: str
    """READY, or AWAY: then it claims nothing."""
    slots: int
    """Episodes that it plays at once."""
    busy: int
    """Episodes that it plays now."""
    waits: tuple[Wait, ...] = ()
    """The episodes that have been waiting the longest, at most MAX_WAITS of them."""
    engines: tuple[EngineUse, ...] = ()
    """Engines that it uses, at most MAX_ENGINES of them."""
    turns_s: float = 0.0
    """Turns a second, lately."""
    tokens_s: float = 0.0
    """Sampled tokens a second, lately."""
    version: str = ""
    """Version of rollq."""
    left_alone: tuple[tuple[str, str], ...] = ()
    """Runs that it gave a job of back, because only other workers can play them, and why. At most
    MAX_LEFT_ALONE.
    """
    age_s: float = field(default=0.0, compare=False)
    """Seconds since it registered, by Redis's clock, in whole seconds."""

    @property
    def is_live(self) -> bool:
        return self.age_s <= LIVE_S

    def plays(self, tokenizer: str, template: str) -> bool:
        """True if it may play a run with these hashes; empty ones are not pinned yet, so every
        worker may.
        """
        return tokenizer in ("", self.tokenizer) and template in ("", self.template)


def register(client: "redis.Redis", worker: LiveWorker) -> None:
    """Records that this worker lives. It counts as live for LIVE_S seconds. Raises LedgerError."""
    entry = asdict(worker)
    name = entry.pop("name")
    del entry["age_s"]  # the script writes the time
    guarded(WORKERS, lambda: _eval(client, "register_worker", name, json.dumps(entry)), REMEDY)


def unregister(client: "redis.Redis", name: str) -> None:
    """Removes a worker that ends. Raises LedgerError."""
    guarded(WORKERS, lambda: client.hdel(WORKERS, name), REMEDY)


def live_workers(client: "redis.Redis") -> list[LiveWorker]:
    """The live workers, by name. Raises LedgerError."""
    return [worker for worker in known_workers(client) if worker.is_live]


def known_workers(client: "redis.Redis") -> list[LiveWorker]:
    """The live workers, and those that are gone without a word for less than LOST_S seconds; by
    name, without entries that another program wrote. Raises LedgerError.
    """
    rows: Any = guarded(WORKERS, lambda: _eval(client, "known_workers", LOST_S), REMEDY)
    workers = filter(None, map(_worker, rows[::3], rows[1::3], rows[2::3]))
    return sorted(workers, key=lambda worker: worker.name)


def queues_of(workers: Collection[LiveWorker]) -> set[str]:
    """The queues that at least one of them takes jobs from."""
    return {queue for worker in workers for queue in worker.queues}


def _eval(client: "redis.Redis", script: str, *args: Any) -> Any:
    return client.eval(lua_file(script), 1, WORKERS, *args)


def _worker(name: bytes, entry: bytes, age_s: int) -> LiveWorker | None:
    try:
        fields = json.loads(entry)
        waits = [Wait(str(job), str(what), float(s)) for job, what, s in fields["waits"]]
        engines = [_engine(*engine) for engine in fields["engines"]]
        left_alone = [(str(run), str(why)) for run, why in fields["left_alone"]]
        return LiveWorker(
            name=name.decode(),
            queues=tuple(map(str, fields["queues"])),
            tokenizer=str(fields["tokenizer"]),
            template=str(fields["template"]),
            engine=str(fields["engine"]),
            slots=int(fields["slots"]),
            busy=int(fields["busy"]),
            waits=tuple(waits),
            engines=tuple(engines),
            turns_s=float(fields["turns_s"]),
            tokens_s=float(fields["tokens_s"]),
            version=str(fields["version"]),
            left_alone=tuple(left_alone),
            age_s=max(0.0, float(age_s)),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _engine(url: object, state: object, episodes: Any, *load: Any) -> EngineUse:
    running, queued, usage = load
    return EngineUse(
        url=str(url),
        state=str(state),
        episodes=int(episodes),
        running=None if running is None else int(running),
        queued=None if queued is None else int(queued),
        token_usage=None if usage is None else float(usage),
    )

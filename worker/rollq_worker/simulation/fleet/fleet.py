"""A fleet and its work, as `rollq simulate` reads them from TOML: what is given, checked once, where it enters.

Times are in seconds. It knows nothing of costs: those are measured (costs/).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollq.errors import SettingsError
from rollq_worker.simulation.amounts import Amount
from rollq_worker.simulation.engine_model import EngineShape
from rollq_worker.simulation.engine_shapes import shape_of
from rollq_worker.simulation.fleet.traces import Episode, read_trace
from rollq_worker.simulation.tables import Table, read_toml

TURN_S, TURNS, NOTHING = Amount(2.0), Amount(8.0), Amount(0.0)
PROMPT, SAMPLED, OBSERVED = Amount(4500.0), Amount(90.0), Amount(200.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Either `turn_s` or `shape` says how long a turn takes."""

    count: int = 1
    turn_s: Amount = TURN_S
    """Seconds of a turn, however many run."""
    shape: EngineShape | None = None
    """How an engine batches, prefills and caches."""
    policy_tokens: int = 0
    """Number of tokens at the beginning of every prompt that are the same: system prompt and tools."""
    cpu_s: float = 0.0
    """CPU of a turn, where the engine is the replay engine on the workers' own cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    processes: int = 1
    concurrency: int = 64
    cores: int = 0
    """Cores for all processes together; 0: one for each."""
    shared: bool = False
    """Redis, engine and producer run on the same cores, as in a demo."""
    foreign: float = 0.0
    """Cores of these that other programs want. It is measured, and no key of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    turns: Amount = TURNS
    prompt_tokens: Amount = PROMPT
    sampled_tokens: Amount = SAMPLED
    """Of a turn."""
    observed_tokens: Amount = OBSERVED
    """Of a turn: what the environment or the user answered."""
    environment_s: Amount = NOTHING
    """Seconds of a turn in the environment or with the user, without CPU of the worker."""
    max_tokens: int = 32768
    """Most tokens of an episode (`Budget.max_tokens`)."""
    group_size: int = 8
    episodes: tuple[Episode, ...] = ()
    """Recorded episodes, to be drawn in place of turns and tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    groups: int = 1
    """Number of groups in a batch."""
    step_s: float = 0.0
    update_s: float = 0.0
    """Seconds for which the engines stand still while they load new weights."""
    max_staleness: int | None = None
    """The bound of `Client.admit`; None: only `ahead` bounds the groups."""
    ahead: int = 256
    """Most groups that are not acknowledged (`Client.submit`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    round_trip_s: float = 0.0002
    """Seconds for which a call and its answer travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    engines: Engines = field(default_factory=Engines)
    workers: Workers = field(default_factory=Workers)
    jobs: Jobs = field(default_factory=Jobs)
    trainer: Trainer = field(default_factory=Trainer)
    redis: Redis = field(default_factory=Redis)

    @property
    def slots(self) -> int:
        """Number of rollouts that are played at a time, at most."""
        return self.workers.processes * self.workers.concurrency

    @property
    def cores(self) -> int:
        return self.workers.cores or self.workers.processes

    def scaled(self, rollouts: int) -> Fleet:
        """The same fleet with about so many slots: engines, workers, their cores, the batch and `ahead` grow alike."""
        times = rollouts / self.slots

        def grown(count: int) -> int:
            return max(1, round(count * times))

        return replace(
            self,
            engines=replace(self.engines, count=grown(self.engines.count)),
            workers=replace(
                self.workers,
                processes=grown(self.workers.processes),
                cores=self.workers.cores and grown(self.workers.cores),
            ),
            trainer=replace(self.trainer, groups=grown(self.trainer.groups), ahead=grown(self.trainer.ahead)),
        )


def read_fleet(path: Path, changes: dict[str, Any] | None = None) -> Fleet:
    """The fleet of a file. `changes` are values by `table.key` that override the file's. Raises SettingsError."""
    values = read_toml(path)
    for name, value in (changes or {}).items():
        table, _, key = name.partition(".")
        values.setdefault(table, {})[key] = value
    top = Table(str(path), values)
    fleet = Fleet(
        engines=_engines(top.table("engines")),
        workers=_workers(top.table("workers")),
        jobs=_jobs(top.table("jobs"), path.parent),
        trainer=_trainer(top.table("trainer")),
        redis=_redis(top.table("redis")),
    )
    top.end()
    _check(str(path), fleet)
    return fleet


def _engines(table: Table) -> Engines:
    shape = table.table("shape") if table.has("shape") else None
    if shape and table.has("turn_s"):
        raise SettingsError(f"{table.title}: give turn_s or shape, not both: a shape says how long a turn takes")
    found = Engines(
        count=table.whole("count", 1),
        turn_s=TURN_S if shape else table.amount("turn_s"),
        shape=shape_of(shape) if shape else None,
        policy_tokens=table.whole("policy_tokens", 0, default=0),
        cpu_s=table.number("cpu_s", default=0.0),
    )
    table.end()
    return found


def _workers(table: Table) -> Workers:
    found = Workers(
        processes=table.whole("processes", 1),
        concurrency=table.whole("concurrency", 1, default=64),
        cores=table.whole("cores", 1, default=0),
        shared=table.flag("shared", default=False),
    )
    table.end()
    return found


def _jobs(table: Table, folder: Path) -> Jobs:
    traced = table.has("trace")
    tokens = ("turns", "prompt_tokens", "sampled_tokens", "observed_tokens")
    if traced and (both := next((name for name in tokens if table.has(name)), None)):
        raise SettingsError(f"{table.title}: give {both} or trace, not both: a trace has the tokens of its episodes")
    found = Jobs(
        **({} if traced else {name: table.amount(name) for name in tokens}),
        environment_s=table.amount("environment_s", default=NOTHING),
        max_tokens=table.whole("max_tokens", 2, default=32768),
        group_size=table.whole("group_size", 1, default=8),
        episodes=read_trace(folder / table.text("trace")) if traced else (),
    )
    table.end()
    return found


def _trainer(table: Table) -> Trainer:
    found = Trainer(
        groups=table.whole("groups", 1),
        step_s=table.number("step_s", default=0.0),
        update_s=table.number("update_s", default=0.0),
        max_staleness=table.whole("max_staleness", 0) if table.has("max_staleness") else None,
        ahead=table.whole("ahead", 1, default=256),
    )
    table.end()
    return found


def _redis(table: Table) -> Redis:
    found = Redis(round_trip_s=table.number("round_trip_s", default=Redis().round_trip_s))
    table.end()
    return found


def _check(title: str, fleet: Fleet) -> None:
    """Raises SettingsError for a fleet that would wait for itself for ever."""
    trainer = fleet.trainer
    if trainer.max_staleness is None and trainer.groups > trainer.ahead:
        raise SettingsError(
            f"{title}: [trainer] a batch of {trainer.groups} groups never comes while at most {trainer.ahead} groups"
            " are ahead: raise ahead"
        )
    shape, most = fleet.engines.shape, fleet.jobs.max_tokens
    if shape and most > shape.kv_tokens:
        raise SettingsError(
            f"{title}: [engines.shape] kv_tokens is {shape.kv_tokens}, and an episode may have {most} tokens: an engine"
            " could not hold it. Lower max_tokens of [jobs]"
        )

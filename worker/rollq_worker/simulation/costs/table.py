"""What an operation costs, as measured: CPU of Redis, of a worker and of clients, and bytes in Redis.

`measured.toml` beside this module was made by `rollq simulate --measure`, which measures any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from rollq_worker.simulation.tables import Table, read_toml

SHIPPED = Path(__file__).with_name("measured.toml")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCosts:
    """CPU seconds of a worker process."""

    turn_s: float = 0.0
    rollout_s: float = 0.0
    """Of a rollout beside its turns: claim, environment, first prompt, grade, end."""
    message_s: float = 0.0
    """Of Celery's message."""
    wake_s: float = 0.0
    """What a turn costs more after a pause, on a core that was free."""
    switch_s: float = 0.0
    """What it costs more after a pause, on a core that another process has just left."""
    handover_s: float = 0.0
    """No CPU: for so long a core stands still between two processes."""
    idle: float = 0.0
    """Share of a core of a worker with nothing to do."""
    rest_mb: float = 0.0
    """Memory before the first rollout."""
    rollout_mb: float = 0.0
    """Memory of a rollout that is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCosts:
    """CPU seconds of the process that submits and of the one that consumes."""

    submit_group_s: float = 0.0
    publish_s: float = 0.0
    """Of a job's message to Celery."""
    take_rollout_s: float = 0.0
    """Of reading and decoding a trajectory."""
    replay_engine_turn_s: float = 0.0
    """Of the replay engine, for a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisCosts:
    """CPU seconds of Redis, and bytes that it keeps, for the calls of the ledger and of Celery."""

    submit_group_s: float = 0.0
    submit_job_s: float = 0.0
    message_s: float = 0.0
    """Of a message from the producer to its acknowledgement by a worker."""
    claim_s: float = 0.0
    append_s: float = 0.0
    append_kb_s: float = 0.0
    """Of a kilobyte that an append carries."""
    complete_s: float = 0.0
    renew_job_s: float = 0.0
    """Of a renewal, for each job in it."""
    take_group_s: float = 0.0
    read_rollout_s: float = 0.0
    ack_group_s: float = 0.0
    job_bytes: float = 0.0
    """Of a queued job."""
    rollout_bytes: float = 0.0
    """Of a rollout's journal beside the tokens of its turns; a share of the group's prompt is in it."""
    token_bytes: float = 0.0
    wake_s: float = 0.0
    """What a call costs more after a pause."""
    alone: float = 1.0
    """How many times as much the ledger's calls cost when they are made one at a time, without a fleet."""
    idle: float = 0.0
    """Share of a core with a worker that has nothing to do."""
    growth: Mapping[str, float] = field(default_factory=dict)
    """By operation: its time in the script in a run of 10,000 jobs, over that in a run of 16."""

    def times(self, factor: float) -> RedisCosts:
        """The same calls, each so many times as expensive."""
        seconds = [one.name for one in fields(self) if one.name.endswith("_s")]
        return replace(self, **{name: getattr(self, name) * factor for name in seconds})


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    worker: WorkerCosts = field(default_factory=WorkerCosts)
    clients: ClientCosts = field(default_factory=ClientCosts)
    redis: RedisCosts = field(default_factory=RedisCosts)
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Where and with what they were measured."""


def read_costs(path: Path = SHIPPED) -> Costs:
    """Raises SettingsError."""
    top = Table(str(path), read_toml(path))
    costs = Costs(
        worker=_numbers(WorkerCosts, top.table("worker")),
        clients=_numbers(ClientCosts, top.table("clients")),
        redis=_numbers(RedisCosts, top.table("redis")),
        machine=top.table("machine").values,
    )
    top.end()
    return costs


def _numbers(kind: type[T], table: Table) -> T:
    read: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # each of them is a dataclass
        if one.name == "growth":
            inner = table.table(one.name)
            read[one.name] = {name: inner.number(name) for name in inner.values}
        else:
            read[one.name] = table.number(one.name)
    table.end()
    return kind(**read)


def as_toml(costs: Costs) -> str:
    """The table as the text of a file."""
    lines = ["# Measured by `rollq simulate --measure`: seconds of CPU, megabytes, bytes."]
    tables = asdict(costs)
    for name in ("machine", "worker", "clients", "redis"):
        inner = tables[name].pop("growth", {})
        lines += ["", f"[{name}]", *(f"{key} = {_word(value)}" for key, value in tables[name].items())]
        if inner:
            lines += ["", f"[{name}.growth]", *(f"{key} = {_word(value)}" for key, value in inner.items())]
    return "\n".join(lines) + "\n"


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if "." in f"{value:.4g}" or "e" in f"{value:.4g}" else f"{value:.4g}.0"
    if isinstance(value, str):
        return '"' + value.replace("\\", "").replace('"', "") + '"'
    return str(value)

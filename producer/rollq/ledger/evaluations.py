"""Results of evaluations in Redis: a hash of the run, from an evaluation's name to its result
(docs/wire.md).

A result stays when its trajectories are acknowledged, and goes with the run.
"""

from typing import Any

from rollq.errors import ContractError
from rollq.evaluation.result import Result, TaskResult, Try
from rollq.ledger.scripts import Scripts
from rollq.wire.blob import SCHEMA, defer, pack, pack_texts, unpack

MOST_TRIES = 100_000
"""Most tries of one evaluation: about a megabyte in Redis."""


class EvaluationStore:
    """The stored results of one run."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._key = scripts.keys.evaluation

    def names(self) -> list[str]:
        """Names of the evaluations, sorted. Raises LedgerError."""
        names = self._scripts.command("hkeys", self._key)
        return sorted(name.decode("utf-8", "replace") for name in names)

    def load(self, name: str) -> Result | None:
        """The evaluation of that name. Raises LedgerError, or ContractError for one that cannot be
        read.
        """
        blob = self._scripts.command("hget", self._key, name)
        return None if blob is None else decode(blob, self._scripts.run)

    def save(self, result: Result) -> None:
        """Stores it, in place of an earlier one of that name. Raises LedgerError."""
        blob = encode(result)
        self._scripts.call("keep_field", "evaluation", result.name, blob)


def encode(result: Result) -> bytes:
    """The result's blob. Raises ContractError."""
    where = f"the evaluation of run {result.run}"
    tasks = []
    for task in result.tasks:
        tries = [list(episode) for episode in task.tries]
        tasks.append([task.group, task.env, task.split, task.task, tries, dict(task.versions)])
    left_out = list(result.left_out)
    values = [result.name, result.version, result.size, tasks, left_out, result.dead]
    return pack([SCHEMA, "evaluation", pack_texts(values, where)], where)


def decode(blob: bytes, run: str) -> Result:
    """The result in a blob. Raises UnknownSchema, ContractError."""
    where = f"the evaluation of run {run}"
    [packed] = unpack(blob, "evaluation", 1, where)
    values = defer(
        packed, where, name=str, version=str | None, size=int, tasks=list, left_out=list, dead=int
    )()
    try:
        values["tasks"] = [_task(*fields) for fields in values["tasks"]]
    except (TypeError, ValueError) as e:
        raise ContractError(f"{where} cannot be read: {type(e).__name__}: {e}") from e
    return Result(run=run, **values)


def _task(
    group: str, env: str, split: str, task: int, tries: list[Any], versions: dict[str, int]
) -> TaskResult:
    return TaskResult(
        group=group,
        env=env,
        split=split,
        task=task,
        tries=[Try(*fields) for fields in tries],
        versions=versions,
    )

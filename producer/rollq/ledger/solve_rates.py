"""Solve rates of tasks in Redis: the latest group of each task, and the rates known at each step
(docs/wire.md).

The rates known at a step are stored once, when a producer first gets there, and never changes.
"""

from collections.abc import Mapping

from rollq.errors import ContractError
from rollq.ledger.scripts import Scripts
from rollq.wire.blob import SCHEMA, pack, unpack

Rate = tuple[str, float]
"""A group, and the mean of its rewards."""


class Store:
    """The stored rates of one run. Every method raises LedgerError, or ContractError for what
    cannot be read.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts, self._redis = scripts, scripts.redis
        self._latest, self._known = scripts.keys.solved, scripts.keys.known
        self._where = f"the solve rates of run {scripts.run}"

    def add(self, task: str, group: str, rate: float) -> None:
        blob = pack([SCHEMA, "solved", group, rate], self._where)
        self._scripts.call("keep_field", "solved", task, blob)

    def latest(self) -> dict[str, Rate]:
        """By task."""
        found = self._scripts.guard(self._latest, lambda: self._redis.hgetall(self._latest))
        rates = {
            task.decode(): unpack(blob, "solved", 2, self._where) for task, blob in found.items()
        }
        return {task: (group, rate) for task, (group, rate) in rates.items()}

    def known(self, step: int) -> dict[str, Rate] | None:
        """The rates stored for this step; None when nothing was."""
        blob = self._scripts.guard(self._known, lambda: self._redis.hget(self._known, step))
        if blob is None:
            return None
        [rates] = unpack(blob, "known", 1, self._where)
        try:
            return {task: (group, rate) for task, group, rate in rates}
        except (TypeError, ValueError) as e:
            raise ContractError(
                f"{self._where} at step {step} cannot be read: {type(e).__name__}: {e}"
            ) from e

    def keep(self, steps: Mapping[int, Mapping[str, Rate]]) -> None:
        """Stores what was known at these steps, unless something is stored there."""
        blobs = {
            step: pack(
                [SCHEMA, "known", [[task, *rate] for task, rate in rates.items()]], self._where
            )
            for step, rates in steps.items()
        }

        pipe = self._redis.pipeline(transaction=False)
        for step, blob in blobs.items():
            pipe.hsetnx(self._known, step, blob)
        self._scripts.guard(self._known, pipe.execute)

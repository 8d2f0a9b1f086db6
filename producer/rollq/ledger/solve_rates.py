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


class SolveRateStore:
    """The stored rates of one run. Every method raises LedgerError, or ContractError for what
    cannot be read.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._redis = scripts.redis
        self._latest = scripts.keys.solved
        self._at_steps = scripts.keys.solved_at_steps
        self._where = f"the solve rates of run {scripts.run}"

    def add(self, task: str, group: str, rate: float) -> None:
        blob = pack([SCHEMA, "solved", group, rate], self._where)
        self._scripts.call("keep_field", "solved", task, blob)

    def latest(self) -> dict[str, Rate]:
        """Latest rates by task."""
        blobs = self._scripts.command("hgetall", self._latest)
        rates = {}
        for task, blob in blobs.items():
            group, rate = unpack(blob, "solved", 2, self._where)
            rates[task.decode()] = (group, rate)
        return rates

    def at(self, step: int) -> dict[str, Rate] | None:
        """The rates stored for this step; None when nothing was."""
        blob = self._scripts.command("hget", self._at_steps, step)
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
        pipe = self._redis.pipeline(transaction=False)
        for step, rates in steps.items():
            rows = [[task, group, rate] for task, (group, rate) in rates.items()]
            pipe.hsetnx(self._at_steps, step, pack([SCHEMA, "known", rows], self._where))
        self._scripts.guard(self._at_steps, pipe.execute)

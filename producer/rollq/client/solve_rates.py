"""Solve rates of tasks: the trainer adds each group that it gets, and a mixture rests tasks by
them.
"""

from collections.abc import Callable, Mapping

from rollq.batch import Group
from rollq.client.consuming.functions import Filter, Where
from rollq.client.producing.producer import Producer
from rollq.ledger.ledger import Ledger
from rollq.ledger.solve_rates import Rate, SolveRateStore
from rollq.servers.retry import RetryLoop


class SolveRates:
    """The solve rates of one run, for its trainer (`where`, `add`) and for its producer, which
    calls it.
    """

    def __init__(self, ledger: Ledger, producer: Producer, retry: RetryLoop) -> None:
        self._retry = retry
        self._store = SolveRateStore(ledger.scripts)
        self._producer = producer
        self._known: dict[int, Mapping[str, Rate]] = {}
        """The rates that became known before each step that was asked for here."""
        self._seen: dict[str, Rate] = {}
        """All of it, by task."""

    def add(self, group: Group) -> None:
        """Records how well this group solved its task: the mean of its rewards. Safe to repeat."""
        rewards = group.rewards
        task = group.trajectories[0].job.task_name
        rate = sum(rewards) / len(rewards)
        self._retry(lambda: self._store.add(task, group.id, float(rate)))

    def where(self, where: Where | None = None) -> Callable[[Group], bool]:
        """A filter for `Client.batches(where=)` that adds each group, and keeps those that `where`
        keeps (None for all).

        Groups that a filter leaves out are in no batch, and they are the ones that tell which tasks
        are settled.
        """
        kept = None if where is None else Filter.of(where)

        def recorded(group: Group) -> bool:
            self.add(group)
            return kept is None or kept.function(group)

        # Skipped groups are counted under this name.
        recorded.__qualname__ = kept.name if kept else "all"
        return recorded

    def __call__(self, step: int) -> dict[str, float]:
        """The mean rewards, by task, that became known before this step and after the one before.

        They are stored with the run when this step is first asked for, by whichever process, and
        stay as they are. Ask for the steps in order, from 0, as a mixture does.
        """
        if step not in self._known:
            # A producer whose last groups Redis has lost stores the rates again before it submits.
            if not self._known:
                self._producer.pin("solve rates", lambda: self._store.keep(dict(self._known)))
            self._known[step] = self._retry(lambda: self._at(step))
            self._seen.update(self._known[step])
        return {task: rate for task, (_, rate) in self._known[step].items()}

    def _at(self, step: int) -> dict[str, Rate]:
        while True:
            rates = self._store.at(step)
            if rates is not None:
                return rates
            latest = self._store.latest()
            new = {task: rate for task, rate in latest.items() if rate != self._seen.get(task)}
            self._store.keep({step: new})

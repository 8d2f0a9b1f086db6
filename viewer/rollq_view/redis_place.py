"""A Redis as a place with rollouts: its runs, live conversations from the journals, and dead
letters.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rollq.client.client import Client
from rollq.errors import LedgerError, SettingsError
from rollq.export.record import record
from rollq.snapshot.fleet import each_run, read_workers
from rollq.snapshot.rollouts import RolloutReader, reachable
from rollq.trajectory import Trajectory
from rollq_view.conversation import page
from rollq_view.live_run import UNFINISHED, LiveRun
from rollq_view.place import Listing

COUNTS = ("queued", "leased", "dead", "reward_mean")


class RedisPlace:
    """A `Place`."""

    live = True

    def __init__(
        self, connection: Any, title: str, client: Callable[[str], Client] | None = None
    ) -> None:
        """`title`: Redis's address, without a password. `client` makes one of a run, for who may
        change it.
        """
        self.title = title
        self._redis = connection
        self._client = client
        self._runs: dict[str, LiveRun] = {}
        self._runs_of_last_look: list[dict[str, Any]] = []

    def runs(self) -> list[dict[str, Any]]:
        """The runs; when Redis does not answer, those of the last look, each with the reason."""
        try:
            with reachable(self.title):
                totals = [_totals(*run) for run in each_run(self._redis)]
        except LedgerError as e:
            if not self._runs_of_last_look:
                raise
            why = f"this was read before: {e}"
            return [run | {"why": why} for run in self._runs_of_last_look]
        self._runs_of_last_look = totals[::-1]
        return self._runs_of_last_look

    def listing(self, run: str) -> Listing:
        return self._run(run).listing()

    def rollout(self, run: str, key: str, attempt: int | None) -> dict[str, Any]:
        reader = self._run(run).reader
        with reachable(self.title):
            page = page_of_job(*reader.rollout(key, attempt), attempt)
            return page | {"key": key, "waits": self._wait(key)}

    def _wait(self, job_id: str) -> dict[str, Any] | None:
        for worker in read_workers(self._redis).workers:
            for wait in worker.waits:
                if wait.job_id == job_id:
                    return {"what": wait.what, "seconds": wait.seconds}
        return None

    def requeue(self, run: str, job_id: str) -> None:
        if self._client is None:
            raise SettingsError("this Redis is only looked at")
        with reachable(self.title), self._client(run) as client:
            client.requeue([job_id])

    def _run(self, name: str) -> LiveRun:
        """Raises SettingsError for a run that does not exist."""
        if name not in self._runs:
            reader = RolloutReader(self._redis, name)
            with reachable(self.title):
                if not reader.exists():
                    raise SettingsError(f"no run {name!r} in Redis at {self.title}")
            self._runs.setdefault(name, LiveRun(reader, self.title))
        return self._runs[name]


def _totals(name: str, began: float, counts: Mapping[str, Any] | LedgerError) -> dict[str, Any]:
    if isinstance(counts, LedgerError):  # one damaged run costs no other
        return {"run": name, "why": str(counts)}
    return {"run": name, "began": began, "rollouts": counts["submitted"]} | {
        count: counts[count] for count in COUNTS
    }


def page_of_job(
    state: Any, trajectory: Trajectory, images: Mapping[str, bytes], attempt: int | None = None
) -> dict[str, Any]:
    """The page of a job in Redis, finished or not. `state`: of `Client.job`. Raises
    ContractError.
    """
    fields = record(trajectory)
    is_current = attempt in (None, state.attempt)
    has_failed = state.failures and is_current and state.state.value != "done"
    if has_failed and not fields["info"].get("reason"):
        fields["info"]["reason"] = state.reason
    return page(
        fields,
        trajectory,
        images=images,
        state=state.state.value if is_current else "set aside",
        worker=trajectory.header.worker or state.worker,
        group_state=state.group_state,
        failures={str(name): count for name, count in state.failures.items()},
        set_aside=list(state.set_aside),
        last_attempt=state.attempt,
        env_version=trajectory.header.env_version,
        submitted=state.submitted,
        ended=trajectory.closed.at if trajectory.closed else 0.0,
        running=state.state.value in UNFINISHED and is_current,
    )

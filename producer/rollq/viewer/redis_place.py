"""A Redis as a place with rollouts: its runs, live conversations from the journals, and dead letters."""

import contextlib
from collections.abc import Iterator
from typing import Any

from rollq.errors import ContractError, LedgerError, SettingsError
from rollq.export.record import record
from rollq.images import IMAGES, images_by_hash, references
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.reader import LedgerReader, runs
from rollq.ledger.replies import JobState, State
from rollq.ledger.workers.live_workers import Wait, live_workers
from rollq.servers.connection import CONNECTION_ERRORS
from rollq.trajectory import Trajectory
from rollq.viewer.conversation import page
from rollq.viewer.live_run import LiveRun
from rollq.viewer.place import Listing

COUNTS = ("queued", "leased", "done", "dead", "delivered", "reward_mean")


class RedisPlace:
    """A `Place`."""

    live = True

    def __init__(self, client: Any, title: str) -> None:
        """`client`: a connection of `rollq.servers.connection.connect`. `title`: its address, without a password."""
        self.title = title
        self._redis = client
        self._runs: dict[str, LiveRun] = {}
        self._seen: list[dict[str, Any]] = []

    def runs(self) -> list[dict[str, Any]]:
        """Those that were seen before, each with the reason, when Redis does not answer."""
        try:
            with _reachable(self.title):
                self._seen = [self._totals(name) for name in reversed(runs(self._redis))]
        except LedgerError as e:
            if not self._seen:
                raise
            return [run | {"why": f"this was read before: {e}"} for run in self._seen]
        return self._seen

    def _totals(self, name: str) -> dict[str, Any]:
        reader = LedgerReader(self._redis, name)
        try:
            stats = reader.stats()
        except LedgerError as e:  # one damaged run costs no other
            return {"run": name, "why": str(e)}
        return {"run": name, "rollouts": stats["submitted"], "began": reader.began()} | {n: stats[n] for n in COUNTS}

    def listing(self, run: str) -> Listing:
        with _reachable(self.title):
            return self._run(run).listing()

    def rollout(self, run: str, key: str, attempt: int | None) -> dict[str, Any]:
        with _reachable(self.title):
            reader = self._run(run).reader
            state, trajectory = reader.job(key), reader.trajectory(key, attempt)
            if state is None:
                raise LedgerError(f"job {key} is unknown: run {run} has no such job")
            return page_of_job(reader, state, trajectory, attempt) | {"key": key, "waits": self._wait(key)}

    def _wait(self, job_id: str) -> dict[str, Any] | None:
        waits: Iterator[Wait] = (wait for worker in live_workers(self._redis) for wait in worker.waits)
        return next(({"what": w.what, "seconds": w.seconds} for w in waits if w.job_id == job_id), None)

    def requeue(self, run: str, job_id: str) -> None:
        with _reachable(self.title):
            DeadLetters(self._redis, run).requeue(job_id)

    def _run(self, name: str) -> LiveRun:
        """Raises SettingsError for a run that does not exist."""
        if name not in self._runs:
            reader = LedgerReader(self._redis, name)
            if not reader.exists():
                raise SettingsError(f"no run {name!r} in Redis at {self.title}")
            self._runs.setdefault(name, LiveRun(reader))
        return self._runs[name]


def page_of_job(
    reader: LedgerReader, state: JobState, trajectory: Trajectory, attempt: int | None = None
) -> dict[str, Any]:
    """The page of a job in Redis, finished or not. Raises LedgerError, ContractError."""
    found = record(trajectory)
    current = attempt in (None, state.attempt)
    if state.failures and current and not found["info"].get("reason"):
        found["info"]["reason"] = state.reason
    return page(
        found,
        trajectory,
        images=_images(reader, trajectory),
        state=state.state.value if current else "set aside",
        worker=trajectory.header.worker or state.worker,
        group_state=state.group_state,
        failures={str(name): count for name, count in state.failures.items()},
        set_aside=list(state.set_aside),
        last_attempt=state.attempt,
        tokenizer_hash=trajectory.header.tokenizer_hash,
        env_version=trajectory.header.env_version,
        submitted=state.submitted,
        ended=trajectory.closed.at if trajectory.closed else 0.0,
        running=state.state in (State.QUEUED, State.LEASED) and current,
    )


def _images(reader: LedgerReader, trajectory: Trajectory) -> dict[str, bytes]:
    """Files of the episode's images. Before it is done, Redis has none."""
    try:
        if not trajectory.graded or not references(trajectory.messages):
            return {}
        found = reader.read([trajectory.job.id], [IMAGES])[0]
        return {} if isinstance(found, ContractError) else images_by_hash(found)
    except (ContractError, TypeError, ValueError):
        return {}


@contextlib.contextmanager
def _reachable(where: str) -> Iterator[None]:
    """Raises LedgerError when Redis is away."""
    try:
        yield
    except CONNECTION_ERRORS as e:
        raise LedgerError(f"Redis at {where} does not answer: {e}") from e

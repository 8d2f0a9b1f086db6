"""The ledger's read side: what a run, its groups and its jobs look like right now.

Reads only, so it may be slow and it may be stale; whatever decides something is a script of `Ledger`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, NoReturn, TypeVar

import redis

from rollq.errors import ContractError, FailureClass, LedgerError, Unwritable
from rollq.job import Purpose, parse_id
from rollq.ledger.keys import Keys
from rollq.ledger.replies import Balance, DeadLetter, JobState, Standing, State
from rollq.ledger.retry import translated
from rollq.ledger.scripts import sources
from rollq.token_stats import Fidelity
from rollq.trajectory import Closed, Header, Stop, Trajectory
from rollq.wire.codec import decode_job, read_trajectory

T = TypeVar("T")

COUNTS = (
    "submitted",
    "resubmitted",
    "done",
    "claims",
    "resumed",
    "turns_saved",
    "released",
    "expired",
    "fenced",
    "delivered",
    "duplicates",
    "redelivered",
    "dropped",
    "requeued",
    "discarded",
    "groups_acked",
    "groups_dropped",
    "turns",
    "sampled_tokens",
    "total_tokens",
    *Fidelity().counts,
)


class LedgerView:
    """One run's ledger, read. Raises LedgerError when a key was tampered with."""

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.redis: Any = client  # redis-py's types say that every reply may be awaited
        self.run = run
        self.keys = Keys(run)
        self._scripts = {name: client.register_script(source) for name, source in sources().items()}

    def standing(self, purpose: Purpose = Purpose.TRAIN) -> Standing:
        """How many groups of that purpose are where, all at one instant."""
        sealed, _, _, _, _, *groups = self._call("snapshot", [0], "standing")
        groups_open, ready, held = groups[:3] if purpose is Purpose.TRAIN else groups[3:]
        return Standing(groups_open, ready, held, bool(sealed))

    def group_states(self, names: Sequence[str]) -> list[str]:
        """Where these groups are: open, ready, held, acked or dropped; empty for an unknown one."""
        pipe = self.redis.pipeline(transaction=False)
        for name in names:
            pipe.hget(self.keys.group(name), "state")
        return [_text(state) for state in self._guard("groups", pipe.execute)]

    def now(self) -> float:
        """Redis's clock, Unix seconds."""
        seconds, micros = self.redis.time()
        return float(seconds + micros / 1e6)

    def journal(self, job_id: str, attempt: int | None = None) -> list[bytes]:
        """Header and events, encoded: of the current journal, or of the one set aside under `attempt`."""
        self._check(job_id)
        key = self.keys.journal(job_id, attempt)
        return list(self._guard(f"journal of {job_id}", lambda: self.redis.lrange(key, 0, -1)))

    def trajectory(self, job_id: str, attempt: int | None = None) -> Trajectory:
        """What there is of a job's episode, finished or not; a dead one is closed with what killed it.

        With `attempt`, what was set aside under that number. Raises LedgerError for an unknown or acknowledged job or a
        journal that is not there, ContractError for blobs that cannot be read.
        """
        state = self.job(job_id)
        if state is None:
            raise LedgerError(f"job {job_id} is unknown: run {self.run} has no such job")
        if state.job is None:
            why = "dropped" if state.state is State.DEAD else "acknowledged (or dropped)"
            raise LedgerError(f"job {job_id} was {why}, and its trajectory with it")
        if attempt is not None and attempt != state.attempt:
            if attempt not in state.set_aside:
                there = ", ".join(map(str, state.set_aside)) or "none"
                raise LedgerError(f"job {job_id}: no journal was set aside by attempt {attempt} (there are: {there})")
            journal = self.journal(job_id, attempt)
            if not journal:
                raise LedgerError(f"job {job_id}: the journal that attempt {attempt} left is gone")
            return _ended_by(read_trajectory(state.job, journal[0], journal[1:]), attempt)
        header = state.journal[0] if state.journal else Header(attempt=state.attempt, worker=state.worker)
        trajectory = read_trajectory(state.job, header, state.journal[1:])
        trajectory = _ended_by(trajectory, state.attempt)
        if state.state is not State.DEAD or trajectory.closed:
            return trajectory
        failure = state.failure or FailureClass.JOB
        closed = Closed(
            stop=Stop.ABORTED if failure is FailureClass.CANCELLED else Stop.FAILED,
            reward=None,
            failure=failure,
            info={"reason": state.reason, "failures": dict(state.failures)},
        )
        return replace(trajectory, events=[*trajectory.events, closed])

    def read(self, job_ids: Sequence[str]) -> list[Trajectory | ContractError]:
        """The trajectories of done jobs in one round trip, or why one cannot be read."""
        pipe = self.redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipe.hmget(self.keys.job(job_id), "body", "attempt")
            pipe.lrange(self.keys.journal(job_id), 0, -1)
        replies = self._guard("reading trajectories", lambda: pipe.execute(raise_on_error=False))
        for reply in replies:  # a Redis that is busy or failing over says nothing of the jobs
            if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                self._guard("reading trajectories", partial(_throw, reply))
        return [
            _read(job_id, record, journal)
            for job_id, record, journal in zip(job_ids, replies[::2], replies[1::2], strict=True)
        ]

    def job(self, job_id: str) -> JobState | None:
        """All there is to know of a job; None when it is unknown."""
        _, name, _ = self._check(job_id)
        try:
            raw, journal, (seq, purpose, group_state) = self._read_job(job_id, name, transaction=True)
        except Unwritable:  # a Redis that is out of memory refuses even to read in MULTI
            raw, journal, (seq, purpose, group_state) = self._read_job(job_id, name, transaction=False)
        if not raw:
            return None
        got = {key.decode(): value for key, value in raw.items()}
        try:
            return self._job_state(job_id, got, journal, seq, _text(purpose), _text(group_state))
        except (KeyError, ValueError) as e:
            raise LedgerError(
                f"job {job_id}: its record in Redis is damaged: {type(e).__name__}: {e}. A job or a group that the"
                " workers cannot put right is dead or dropped when its turn comes."
            ) from e

    def _read_job(self, job_id: str, group: str, *, transaction: bool) -> Any:
        pipe = self.redis.pipeline(transaction=transaction)
        pipe.hgetall(self.keys.job(job_id))
        pipe.lrange(self.keys.journal(job_id), 0, -1)
        pipe.hmget(self.keys.group(group), "seq", "purpose", "state")
        return self._guard(f"job {job_id}", pipe.execute)

    def _job_state(
        self, job_id: str, got: Mapping[str, bytes], journal: list[bytes], seq: bytes | None, purpose: str, group: str
    ) -> JobState:
        attempt = int(got["attempt"])
        member = f"{job_id}#{attempt}"
        job = replace(decode_job(got["body"], job_id), seq=int(seq or 0)) if "body" in got else None
        if purpose not in set(Purpose):  # nobody knows any more
            purpose = job.purpose if job else Purpose.TRAIN
        return JobState(
            id=job_id,
            job=job,
            state=State(_text(got["state"])),
            attempt=attempt,
            worker=_text(got.get("worker")),
            purpose=Purpose(purpose),
            group_state=group,
            failures={c: int(n) for c in FailureClass if (n := got.get(f"fail:{c}")) and int(n)},
            failure=FailureClass(_text(got["class"])) if "class" in got else None,
            reason=_text(got.get("reason")),
            not_before=float(got.get("not_before", b"0")),
            lease_until=self._guard("leased", lambda: self.redis.zscore(self.keys.leased, member)),
            set_aside=[int(n) for n in _text(got.get("aside")).split()],
            journal=journal,
        )

    def dead(self, limit: int | None = 1000) -> list[DeadLetter]:
        """The jobs that ended without a grade, the latest first."""
        last = -1 if limit is None else limit - 1
        rows = self._guard("dead", lambda: self.redis.zrevrange(self.keys.dead, 0, last, withscores=True))
        pipe = self.redis.pipeline(transaction=False)
        for job_id, _ in rows:
            pipe.hmget(self.keys.job(_text(job_id)), "class", "reason", "attempt", "worker", "turned")
        details = self._guard("dead", lambda: pipe.execute(raise_on_error=False))
        now = self.now()
        return [
            _letter(_text(job_id), now - died, detail) for (job_id, died), detail in zip(rows, details, strict=True)
        ]

    def stats(self) -> dict[str, Any]:
        """How many jobs and groups are where, and the totals since the run began (keys: docs/ledger.md)."""
        sealed, _, queued, leased, dead, *groups, raw = self._call("snapshot", [1], "stats")
        counts = _numbers(raw)
        stats: dict[str, Any] = {"run": self.run, "sealed": bool(sealed)}
        stats |= {name: int(counts.get(name, 0)) for name in COUNTS}
        stats |= {"queued": queued, "leased": leased, "dead": dead + stats["discarded"]}
        for place, train, evaluation in zip(("open", "ready", "held"), groups[:3], groups[3:], strict=True):
            stats[f"groups_{place}"] = train + evaluation
        stats["extension_ratio"] = Fidelity(**{name: stats[name] for name in Fidelity().counts}).extension_ratio
        stats["failures"] = _by_name(counts, "failures:")
        stats["stops"] = _by_name(counts, "stop:")
        completed = sum(stats["stops"].values())
        stats["reward_mean"] = counts.get("reward_sum", 0.0) / completed if completed else None
        return stats

    def balance(self) -> Balance:
        """Whether the accounts of jobs and groups add up. Raises LedgerError when they cannot be read at all."""
        sealed, seq, queued, leased, dead, *groups, raw = self._call("snapshot", [1], "balance")
        counts = _numbers(raw)
        names = ("submitted", "done", "discarded", "groups", "groups_acked", "groups_dropped")
        submitted, done, discarded, known, acked, dropped = (counts.get(name, 0) for name in names)
        jobs_are_there = submitted == queued + leased + dead + done + discarded
        groups_are_there = known == sum(groups) + acked + dropped and seq >= known
        return Balance(jobs_are_there and groups_are_there, bool(sealed) and not queued and not leased, queued)

    def _call(self, name: str, args: Sequence[Any], what: str = "") -> Any:
        """Run one of the scripts."""
        try:
            return self._guard(what or name, lambda: self._scripts[name](keys=[self.keys.prefix], args=args))
        except LedgerError as e:
            if isinstance(e, Unwritable) or "user_script" not in str(e):
                raise
            # A script stumbled over something that no record should hold. Said in words, with what it was about.
            about = next((f" of job {arg}" for arg in args if str(arg).startswith(f"{self.run}/")), "")
            raise LedgerError(
                f"run {self.run}: {what or name}{about}: the run's records in Redis are damaged ({e.__cause__}). The"
                f" workers mend a run every half a minute; if that does not help, look at its keys {self.keys.prefix}*"
            ) from e

    def _guard(self, what: str, call: Callable[[], T]) -> T:
        """Redis's refusals (a key of the wrong type, out of memory, read-only) as errors that name the run."""
        try:
            return call()
        except redis.ResponseError as e:
            raise translated(e, f"run {self.run}: {what}") from e

    def _check(self, job_id: str) -> tuple[str, str, int]:
        run, group, sample = parse_id(job_id)
        if run != self.run:
            raise ContractError(f"job {job_id} is not of run {self.run}")
        return run, group, sample


def _read(job_id: str, record: Any, journal: Any) -> Trajectory | ContractError:
    for reply in (record, journal):
        if isinstance(reply, Exception):
            return ContractError(f"job {job_id}: {reply}")
    body, attempt = record
    if not body or not journal:
        return ContractError(f"job {job_id}: its {'journal' if body else 'body'} is gone")
    try:
        trajectory = read_trajectory(decode_job(body, job_id), journal[0], journal[1:])
        if not trajectory.graded:
            return ContractError(f"job {job_id}: its journal has no graded end")
        return _ended_by(trajectory, int(attempt))
    except ContractError as e:
        return e
    except (TypeError, ValueError) as e:
        return ContractError(f"job {job_id}: its record is damaged: attempt {attempt!r}: {e}")


def _throw(error: Exception) -> NoReturn:
    raise error


def _ended_by(trajectory: Trajectory, attempt: int) -> Trajectory:
    """The header is of the attempt that began the journal; what counts is the one that ended it."""
    return replace(trajectory, header=replace(trajectory.header, attempt=attempt))


def _letter(job_id: str, age_s: float, detail: Any) -> DeadLetter:
    if isinstance(detail, Exception) or detail[0] is None or _text(detail[0]) not in set(FailureClass):
        return DeadLetter(
            job_id=job_id,
            failure=FailureClass.JOB,
            reason="its record in Redis is damaged",
            attempts=0,
            worker="",
            turns=0,
            age_s=age_s,
        )
    failure, reason, attempts, worker, turns = map(_text, detail)
    return DeadLetter(
        job_id=job_id,
        failure=FailureClass(failure),
        reason=reason,
        attempts=_whole(attempts),
        worker=worker,
        turns=_whole(turns),
        age_s=age_s,
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _numbers(raw: Sequence[bytes]) -> dict[str, float]:
    """Names and values in turn; what is no number is left out."""
    return {_text(name): float(value) for name, value in zip(raw[::2], raw[1::2], strict=True) if _is_number(value)}


def _is_number(value: bytes) -> bool:
    try:
        return isfinite(float(value))
    except ValueError:
        return False


def _by_name(counts: Mapping[str, float], prefix: str) -> dict[str, int]:
    return {
        name[len(prefix) :]: int(value) for name, value in sorted(counts.items()) if name.startswith(prefix) and value
    }

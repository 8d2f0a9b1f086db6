"""The ledger's read side: what a run, its groups and its jobs look like right now.

It only reads, so an answer may be stale; every decision is a script of `Ledger`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any

import redis

from rollq.errors import ContractError, FailureClass, LedgerError, Unwritable
from rollq.events import Closed, Stop
from rollq.job import NAME, Job, Purpose
from rollq.ledger.finished_jobs import ended_by, read_finished
from rollq.ledger.job_extras import read_extras
from rollq.ledger.keys import RUNS
from rollq.ledger.records import joined, sample_of
from rollq.ledger.replies import DeadLetter, JobState, Standing, State
from rollq.ledger.scripts import Reply, Scripts
from rollq.ledger.stored import number, text
from rollq.ledger.versions import read_policy
from rollq.ledger.workers.reaping import RUNS_REMEDY
from rollq.servers.refusal import KEY_REMEDY, guarded
from rollq.teachers import logprobs_of
from rollq.token_stats import TokenStats
from rollq.trajectory import Header, Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS, Extra
from rollq.wire.codec import read_trajectory
from rollq.wire.routed_experts import routed_experts

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
    "redelivered",
    "dropped",
    "surplus",
    "requeued",
    "discarded",
    "groups_acked",
    "groups_skipped",
    "skipped",
    "groups_dropped",
    "turns",
    "sampled_tokens",
    "total_tokens",
    *TokenStats().counts,
)
GROUP_FIELDS = ("seq", "purpose", "state", "body", "at")
"""The fields of a group's record that its jobs' states show."""


def runs(client: "redis.Redis") -> list[str]:
    """Every run that was ever submitted to, the oldest first. Raises LedgerError."""
    return list(runs_since(client))


def runs_since(client: "redis.Redis") -> dict[str, float]:
    """The same, each with the Unix time at which it was first submitted to. Raises LedgerError."""
    rows: Any = guarded(RUNS, lambda: client.zrange(RUNS, 0, -1, withscores=True), RUNS_REMEDY)
    times = {run.decode("utf-8", "replace"): at for run, at in rows}
    return {name: at for name, at in times.items() if NAME.fullmatch(name)}


class LedgerReader:
    """The read side of one run's ledger. Every method raises LedgerError, naming run and key, for
    what cannot be read.
    """

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.scripts = Scripts(client, run)
        self.redis = self.scripts.redis
        self.run = run
        self.keys = self.scripts.keys

    def exists(self) -> bool:
        """True if a producer has submitted to the run or pinned something for it."""
        return bool(self.scripts.command("exists", self.keys.meta))

    def began(self) -> float:
        """Unix time of the run's first submission; inf for an unknown run."""
        began = self.scripts.command("zscore", RUNS, self.run)
        return inf if began is None else float(began)

    def standing(self, purpose: Purpose = Purpose.TRAIN) -> Standing:
        """The run's jobs and its groups of that purpose, counted at one instant."""
        return _standing(purpose, self.scripts.call("snapshot", 0))

    def snapshot(self) -> tuple[dict[Purpose, Standing], dict[str, Any]]:
        """The standings, and the counts of `stats`, all at the same instant."""
        reply = self.scripts.call("snapshot", 1)
        standings = {purpose: _standing(purpose, reply) for purpose in Purpose}
        return standings, self._counts(reply)

    def forgets(self) -> bool:
        """True if the run forgets acknowledged groups."""
        return self.scripts.command("hget", self.keys.meta, "forget_after_s") is not None

    def group_states(self, names: Sequence[str]) -> list[str]:
        """The state of each group: open, ready, held, acked or dropped (also one that was skipped
        as stale); empty for an unknown one.
        """
        pipe = self.redis.pipeline(transaction=False)
        for name in names:
            pipe.hget(self.keys.group(name), "state")
            pipe.exists(self.keys.acked(name))
            pipe.sismember(self.keys.stale, name)
        replies = iter(self.scripts.guard("groups", pipe.execute))
        states = []
        for _ in names:
            state, is_acked, is_stale = text(next(replies)), next(replies), next(replies)
            if is_acked and not state:
                state = "dropped" if is_stale else "acked"
            states.append(state)
        return states

    def trajectory(self, job_id: str, attempt: int | None = None) -> Trajectory:
        """A job's episode, finished or not. That of a dead job is closed with the failure that
        killed it.

        With `attempt`: the journal that was set aside under that number. Raises LedgerError for an
        unknown or acknowledged job or a missing journal, ContractError for blobs that cannot be
        read.
        """
        state = self.job(job_id)
        if state is None:
            raise LedgerError(f"job {job_id} is unknown: run {self.run} has no such job")
        if state.job is None:
            why = _GONE.get(state.state, "acknowledged (see your exported file) or dropped")
            raise LedgerError(f"job {job_id} was {why}, and its trajectory with it")
        if attempt is not None and attempt != state.attempt:
            return self._set_aside(state.job, state, attempt)
        header: bytes | Header = Header(attempt=state.attempt, worker=state.worker)
        if state.journal:
            header = state.journal[0]
        trajectory = ended_by(read_trajectory(state.job, header, state.journal[1:]), state.attempt)
        if state.state is State.DONE:
            [scored] = self._with_arrays([job_id], [trajectory], ())
            if isinstance(scored, ContractError):
                raise scored
            return scored
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

    def _set_aside(self, job: Job, state: JobState, attempt: int) -> Trajectory:
        if attempt not in state.set_aside:
            there = ", ".join(map(str, state.set_aside)) or "none"
            raise LedgerError(
                f"job {job.id}: no journal was set aside by attempt {attempt} (there are: {there})"
            )
        key = self.keys.journal(job.id, attempt)
        pipe = self.redis.pipeline(transaction=False)
        pipe.lrange(key, 0, -1)
        pipe.hgetall(self.keys.prompts(job.group))
        entries, prompts = self.scripts.guard(key, pipe.execute)
        journal = joined(entries, prompts, job.id)
        if not journal:
            raise LedgerError(f"job {job.id}: the journal that attempt {attempt} left is gone")
        return ended_by(read_trajectory(job, journal[0], journal[1:]), attempt)

    def read(
        self, job_ids: Sequence[str], extras: Sequence[str] = ()
    ) -> list[Trajectory | ContractError]:
        """The trajectories of done jobs, with the extras of these names and their teachers'
        logprobs. A job that cannot be read has its error instead.

        Raises UnknownSchema when another version of rollq wrote one of them.
        """
        return self._with_arrays(job_ids, read_finished(self.scripts, job_ids), extras)

    def _with_arrays(
        self,
        job_ids: Sequence[str],
        trajectories: list[Trajectory | ContractError],
        extras: Sequence[str],
    ) -> list[Trajectory | ContractError]:
        names = dict.fromkeys((*extras, *_teachers_scores(trajectories)))
        if not names:
            return trajectories
        arrays = read_extras(self.scripts, job_ids, list(names))
        pairs = zip(trajectories, arrays, strict=True)
        trajectories = [_with_extras(trajectory, own) for trajectory, own in pairs]
        if ROUTED_EXPERTS in extras:
            trajectories = [_with_experts(trajectory) for trajectory in trajectories]
        return trajectories

    def job(self, job_id: str) -> JobState | None:
        """Everything the ledger knows of a job; None when it is unknown."""
        try:
            job, group, acked, journal = self._read_job(job_id, transaction=True)
        except Unwritable:  # a Redis that is out of memory refuses even to read in MULTI
            job, group, acked, journal = self._read_job(job_id, transaction=False)
        if acked:
            group["state"] = b"acked"
        try:
            if not job:
                return self._acked_job(job_id, acked)
            return self._job_state(job_id, job, group, journal)
        except (KeyError, ValueError) as e:
            raise LedgerError(
                f"job {job_id}: {self.keys.job(job_id)} or its group's record cannot be "
                f"read: {type(e).__name__}: {e}. {KEY_REMEDY}"
            ) from e

    def _read_job(self, job_id: str, *, transaction: bool) -> Any:
        """The records of a job, of its group and of an acknowledged group, and the journal."""
        group, _ = self.scripts.parse(job_id)
        pipe = self.redis.pipeline(transaction=transaction)
        pipe.hgetall(self.keys.job(job_id))
        pipe.lrange(self.keys.journal(job_id), 0, -1)
        pipe.hgetall(self.keys.prompts(group))
        pipe.hmget(self.keys.group(group), GROUP_FIELDS)
        pipe.get(self.keys.acked(group))
        raw, entries, prompts, values, acked = self.scripts.guard(f"job {job_id}", pipe.execute)
        job = {text(name): value for name, value in raw.items()}
        group_record = dict(zip(GROUP_FIELDS, values, strict=True))
        return job, group_record, acked, joined(entries, prompts, job_id)

    def _acked_job(self, job_id: str, record: bytes | None) -> JobState | None:
        """The rest of a member of an acknowledged group; None without such a group or member."""
        _, sample = self.scripts.parse(job_id)
        if record is None:
            return None
        _, members, _, ended, _ = record.split(b" ", 4)  # lua/settle.lua: shrink
        if sample >= int(members):
            return None
        dead, _, surplus = (samples.split(b",") for samples in ended.partition(b";"))
        number = str(sample).encode()
        state = State.DONE
        if number in dead:
            state = State.DEAD
        elif number in surplus:
            state = State.SURPLUS
        return JobState(id=job_id, job=None, state=state, attempt=0, group_state="acked")

    def _job_state(
        self,
        job_id: str,
        record: Mapping[str, bytes],
        group: Mapping[str, bytes | None],
        journal: list[bytes],
    ) -> JobState:
        attempt = int(record["attempt"])
        state = State(text(record["state"]))
        lease = f"{job_id}#{attempt}#{text(record.get('token'))}"
        lease_until = self.scripts.command("zscore", self.keys.leased, lease)
        body = record.get("body", group["body"])
        job = None
        if body and "discarded" not in record and state is not State.SURPLUS:
            job = replace(sample_of(body, job_id), seq=int(group["seq"] or 0))
        failures = {failure: int(record.get(f"fail:{failure}", 0)) for failure in FailureClass}
        return JobState(
            id=job_id,
            job=job,
            state=state,
            attempt=attempt,
            worker=text(record.get("worker")),
            purpose=Purpose(text(group["purpose"]) or Purpose.TRAIN),
            group_state=text(group["state"]),
            failures={failure: count for failure, count in failures.items() if count},
            failure=FailureClass(text(record["class"])) if "class" in record else None,
            reason=text(record.get("reason")),
            submitted=float(group["at"] or 0.0),
            not_before=float(record.get("not_before", 0)),
            lease_until=lease_until,
            set_aside=[int(number) for number in text(record.get("aside")).split()],
            journal=journal,
        )

    def dead(self, limit: int | None = 1000) -> list[DeadLetter]:
        """The jobs that ended without a grade, the latest first, `limit` at most."""
        if limit is not None and limit < 1:
            return []
        key = self.keys.dead
        last = -1
        if limit is not None:
            last = limit - 1
        rows = self.scripts.command("zrevrange", key, 0, last, withscores=True)
        pipe = self.redis.pipeline(transaction=False)
        for job_id, _ in rows:
            pipe.hmget(
                self.keys.job(text(job_id)), "class", "reason", "attempt", "worker", "turned"
            )
        records = self.scripts.guard(key, lambda: pipe.execute(raise_on_error=False))
        now = self.scripts.now()
        letters = []
        for (job_id, died), record in zip(rows, records, strict=True):
            letters.append(self._dead_letter(text(job_id), now - died, record))
        return letters

    def _dead_letter(self, job_id: str, age_s: float, record: Any) -> DeadLetter:
        try:
            failure, reason, attempts, worker, turns = record
            kind = FailureClass(text(failure))
            attempts = int(attempts)
            turns = int(turns or 0)
        except (TypeError, ValueError):  # TypeError: Redis refused to read it
            reason = f"{self.keys.job(job_id)} cannot be read".encode()
            worker = b""
            kind = FailureClass.JOB
            attempts = 0
            turns = 0
        return DeadLetter(
            job_id=job_id,
            failure=kind,
            reason=text(reason),
            attempts=attempts,
            worker=text(worker),
            turns=turns,
            age_s=age_s,
        )

    def stats(self) -> dict[str, Any]:
        """Counts of jobs and groups by state, and totals since the run began (keys:
        docs/ledger.md).
        """
        return self._counts(self.scripts.call("snapshot", 1))

    def _counts(self, reply: Reply) -> dict[str, Any]:
        totals = {}
        for name, value in zip(reply["totals"][::2], reply["totals"][1::2], strict=True):
            total = number(value)
            if total is None:
                raise LedgerError(
                    f"run {self.run}: {self.keys.count} has no readable {text(name)}. {KEY_REMEDY}"
                )
            totals[text(name)] = total
        stats: dict[str, Any] = {
            "run": self.run,
            "known": bool(reply["exists"]),
            "sealed": bool(reply["sealed"]),
        }
        stats |= {name: int(totals.get(name, 0)) for name in COUNTS}
        stats["queued"] = reply["queued"]
        stats["leased"] = reply["leased"]
        stats["dead"] = reply["dead"] + stats["discarded"]
        for place in ("open", "ready", "held"):
            groups = [reply[f"{place}:{purpose}"] for purpose in Purpose]
            stats[f"groups_{place}"] = sum(groups)
        token_stats = TokenStats(**{name: stats[name] for name in TokenStats().counts})
        stats["extension_ratio"] = token_stats.extension_ratio
        published, admission = read_policy(reply)
        stats["policy"] = asdict(published) if published else None
        stats["admission"] = asdict(admission) if admission else None
        stats["failures"] = _by_name(totals, "failures:")
        stats["stops"] = _by_name(totals, "stop:")
        stats["skips"] = _by_name(totals, "skipped:")
        stats["rejected"] = _by_name(totals, "rejected:")
        stats["rejected"].pop("reward_sum", None)
        completed = sum(stats["stops"].values())
        stats["reward_mean"] = totals.get("reward_sum", 0.0) / completed if completed else None
        return stats


def _standing(purpose: Purpose, reply: Reply) -> Standing:
    full = reply[f"full:{purpose}"]
    published, admission = read_policy(reply)
    return Standing(
        open=reply[f"open:{purpose}"],
        ready=reply[f"ready:{purpose}"],
        held=reply[f"held:{purpose}"],
        sealed=bool(reply["sealed"]),
        queued=reply["queued"],
        leased=reply["leased"],
        exists=bool(reply["exists"]),
        full=None if full < 0 else full,
        wanted=reply[f"wanted:{purpose}"],
        published=published,
        admission=admission if purpose is Purpose.TRAIN else None,
    )


_GONE = {
    State.DEAD: "dropped",
    State.SURPLUS: "ended as surplus (its group had enough graded members)",
}
"""The end of a job whose trajectory is gone, by its state."""


def _with_extras(
    trajectory: Trajectory | ContractError, extras: dict[str, Extra] | ContractError
) -> Trajectory | ContractError:
    if isinstance(trajectory, ContractError):
        return trajectory
    if isinstance(extras, ContractError):
        return extras
    sampled = trajectory.sampled_tokens
    for teacher in trajectory.job.teachers if sampled else ():
        scores = extras.get(logprobs_of(teacher))
        if scores is None or (scores.dtype, scores.shape) != ("float32", (sampled,)):
            return ContractError(
                f"job {trajectory.job.id}: the logprobs of the teacher {teacher!r} are not there"
            )
    return replace(trajectory, extras=extras)


def _teachers_scores(trajectories: Iterable[Trajectory | ContractError]) -> Iterator[str]:
    """The extras with the logprobs of these trajectories' teachers."""
    for trajectory in trajectories:
        if isinstance(trajectory, Trajectory):
            yield from map(logprobs_of, trajectory.job.teachers)


def _with_experts(trajectory: Trajectory | ContractError) -> Trajectory | ContractError:
    if isinstance(trajectory, ContractError) or not trajectory.job.routed_experts:
        return trajectory
    try:
        return replace(
            trajectory, extras={**trajectory.extras, ROUTED_EXPERTS: routed_experts(trajectory)}
        )
    except ContractError as e:
        return e


def _by_name(counts: Mapping[str, float], prefix: str) -> dict[str, int]:
    return {
        name[len(prefix) :]: int(value)
        for name, value in sorted(counts.items())
        if name.startswith(prefix) and value
    }

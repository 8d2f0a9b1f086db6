"""The ledger's write side: what producers, workers and consumers do to a run's jobs, groups and holds, in Redis.

Every change is one Lua script (lua/*.lua, keys in keys.py), atomic and safe to repeat with the same arguments. It knows
nothing of Celery. Of a journal it knows only the kinds of the events.
"""

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NoReturn

import redis

from rollq.errors import (
    ContractError,
    FailureClass,
    Fenced,
    JobConflict,
    JournalConflict,
    LedgerError,
    NotHeld,
    SettingsError,
)
from rollq.job import Job, Purpose
from rollq.ledger import constants
from rollq.ledger.constants import HOLD_S, PUBLISHING_S
from rollq.ledger.keys import RUNS
from rollq.ledger.replies import Claim, Cursor, Outcome, Refusal, State, Submission, TakenGroup
from rollq.ledger.scripts import Scripts, short_reason
from rollq.token_stats import TokenStats
from rollq.trajectory import GRADED, Closed
from rollq.wire.codec import decode_event, decode_job, encode_job, is_observed, job_digest


class Ledger:
    """The write side of one run's ledger; `LedgerReader` reads it. Many threads and processes may call it at once.

    Every method raises LedgerError, naming run and key, when Redis refuses a write or a key cannot be read, and
    redis.ConnectionError when Redis cannot be reached.
    """

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.scripts = Scripts(client, run)
        self.redis, self.run, self.keys = self.scripts.redis, run, self.scripts.keys

    def submit(
        self,
        jobs: Sequence[Job],
        *,
        publish_in_s: float = PUBLISHING_S,
        source: str = "",
        cursor: Cursor = Cursor(),  # noqa: B008 (frozen)
    ) -> Submission:
        """Enter one whole group, or jobs of a known group again.

        The caller publishes the new ids within `publish_in_s` seconds and confirms them; with 0 it leaves that to a
        reaper. The source's cursor moves to `cursor` in the same step.

        Raises JobConflict when an id is known with other content, ContractError when the group is incomplete or its
        jobs disagree, LedgerError when the run is sealed. Then nothing has changed.
        """
        if not jobs:
            return Submission()
        first = jobs[0]
        ids = self._check_group(jobs)
        args: list[Any] = [first.group, first.size, first.viable, first.purpose.value, publish_in_s, uuid.uuid4().hex]
        args += [source, f"{cursor.groups} {cursor.jobs} {cursor.mark}"]
        for job in jobs:
            args += [job.id, job_digest(job), job.budget.deadline_s, encode_job(job)]
        self._list_run()
        status, *rest = self.scripts.call("submit", args)
        match status:
            case b"new":
                return Submission(new=ids)
            case b"known":
                return Submission(known=ids)
            case b"conflict":
                raise JobConflict(
                    f"job {rest[0].decode()} was submitted before with other content: submit it as before, or use"
                    " another run"
                )
            case b"sealed":
                raise LedgerError(f"run {self.run} is sealed: it takes no new groups. Use another run.")
        raise ContractError(
            f"group {self.run}/{first.group} is new and has {len(jobs)} of {first.size} samples: submit it whole"
        )

    def _check_group(self, jobs: Sequence[Job]) -> list[str]:
        """The jobs' ids. Raises ContractError unless they are distinct members of one group of this run."""
        first = jobs[0]
        for job in jobs:
            if (job.run, job.group) != (self.run, first.group):
                raise ContractError(f"job {job.id}: belongs to another group or run than {self.run}/{first.group}")
            if (job.size, job.viable, job.purpose) != (first.size, first.viable, first.purpose):
                raise ContractError(f"job {job.id}: size, min_viable or purpose differ within the group")
        ids = [job.id for job in jobs]
        if len(set(ids)) < len(ids):
            raise ContractError(f"group {self.run}/{first.group}: a sample is there twice")
        return ids

    def _list_run(self) -> None:
        self.scripts.guard(RUNS, lambda: self.redis.zadd(RUNS, {self.run: self.scripts.now()}, nx=True))

    def cursor(self, source: str) -> Cursor:
        """How far the source's producer got. Groups before that count as submitted again."""
        self._list_run()  # a producer may have nothing left to submit
        groups, jobs, mark = self.scripts.call("submission_cursor", [source, uuid.uuid4().hex])
        return Cursor(groups, jobs, mark.decode())

    def fix_budgets(self, budgets: Mapping[FailureClass, int]) -> None:
        """Fix the number of failures of each class that kills a job. The run's first caller decides.

        Raises SettingsError when the run has other budgets, ContractError for an unknown class or a number below 1.
        """
        for failure, budget in budgets.items():
            if failure not in set(FailureClass) - {FailureClass.CANCELLED}:
                raise ContractError(f"run {self.run}: there is no budget for failures of class {failure}")
            if type(budget) is not int or budget < 1:
                raise ContractError(f"run {self.run}: a budget is a whole number of at least 1, not {budget!r}")
        args = [word for failure, budget in budgets.items() for word in (failure.value, budget)]
        status, *rest = self.scripts.call("fix_budgets", args)
        if status != b"ok":
            failure, theirs = FailureClass(rest[0].decode()), rest[1]
            raise SettingsError(
                f"run {self.run} has a budget of {theirs} failures of class {failure}, not {budgets[failure]}: budgets"
                " are fixed before its first group. Leave it as it is, or use another run."
            )

    def seal(self) -> None:
        """Seal the run: no more groups will come. Consumers get the short last batch, then an end."""
        self.scripts.guard(self.keys.meta, lambda: self.redis.hset(self.keys.meta, "sealed", 1))

    def reap(self, limit: int = 100, broker_empty: bool = False, expire_until: float = 0.0) -> list[str]:
        """Expire leases, and return the ids of jobs to publish now; `confirm` those that were.

        `expire_until`: the time on Redis's clock after which no lease may expire (`OutageDetector.stamp`).
        """
        return [job_id.decode() for job_id in self.scripts.call("reap", [limit, int(broker_empty), expire_until])]

    def confirm(self, ids: Sequence[str]) -> None:
        """Note that these jobs were published."""
        if ids:
            self.scripts.call("confirm", ids)

    def republish(self, job_id: str) -> None:
        """Have the job published again, because a worker took its message and does not claim it."""
        self.scripts.parse(job_id)
        self.scripts.call("republish", [job_id])

    def fix_hashes(self, tokenizer_hash: str, template_hash: str) -> bool:
        """Fix the run's tokenizer and chat template. Returns False for an unknown run.

        The run's first caller decides. Raises SettingsError when this caller's hashes differ.
        """
        hashes_of_run = self.scripts.call("fix_hashes", [tokenizer_hash, template_hash])
        if not hashes_of_run:
            return False
        tokenizer, template = (value.decode() for value in hashes_of_run)
        hashes = [("tokenizer", tokenizer_hash, tokenizer), ("chat template", template_hash, template)]
        for what, ours, theirs in hashes:
            if ours != theirs:
                raise SettingsError(
                    f"run {self.run} is played with another {what} ({theirs[:12]}, this worker has {ours[:12]}): "
                    "start this worker with the run's tokenizer, or use another run"
                )
        return True

    def claim(self, job_id: str, *, worker: str, token: str) -> Claim | Refusal:
        """Lease a queued job. The token tells a repeat of this claim from another worker's.

        A job whose body cannot be read is failed as class job, so that it does not come again forever.
        """
        self.scripts.parse(job_id)
        status, *rest = self.scripts.call("claim", [job_id, token, worker])
        if status != b"claimed":
            return Refusal(status.decode(), float(rest[0]) if rest else None)
        attempt, seq, set_aside, body, length = rest
        try:
            job = decode_job(body, job_id)
        except ContractError as e:
            self.fail(job_id, attempt, FailureClass.JOB, str(e))
            return Refusal("unreadable", detail=str(e))
        return Claim(replace(job, seq=int(seq)), attempt, bool(set_aside), length)

    def journal(self, job_id: str) -> list[bytes]:
        """The claimed job's journal to go on with: header and events, encoded."""
        key = self.keys.journal(job_id)
        return list(self.scripts.guard(key, lambda: self.redis.lrange(key, 0, -1)))

    def append(self, job_id: str, attempt: int, index: int, blob: bytes) -> None:
        """Journal one blob (index 0: the header) and renew the lease. Raises Fenced, or JournalConflict."""
        turn = int(is_observed(blob))
        self._check_written(self.scripts.call("append", [job_id, attempt, index, turn, blob]), job_id, attempt, index)

    def renew_leases(self, members: Sequence[tuple[str, int]], left_s: Sequence[float] = ()) -> list[tuple[str, int]]:
        """Extend the leases of these (job id, attempt). Returns the lost ones, whose episodes must stop.

        `left_s`: for each member, the seconds to the attempt's deadline. A lease never lasts past it.
        """
        if not members:
            return []
        args: list[Any] = []
        for (job_id, attempt), left in zip(members, left_s or [inf] * len(members), strict=True):
            args += [job_id, attempt, left]
        return [members[position] for position in self.scripts.call("renew_leases", args)]

    def complete(
        self,
        job_id: str,
        attempt: int,
        index: int,
        blob: bytes,
        *,
        turns: int = 0,
        sampled_tokens: int = 0,
        total_tokens: int = 0,
        token_stats: TokenStats = TokenStats(),  # noqa: B008 (frozen)
    ) -> None:
        """Journal the `Closed` event of a graded episode and end the job as done. The numbers are for the stats.

        Raises Fenced, JournalConflict, or ContractError when the event is not a graded `Closed`.
        """
        closed = decode_event(blob, job_id)
        if not isinstance(closed, Closed) or closed.stop not in GRADED:
            raise ContractError(f"job {job_id}: only a graded Closed completes a job")
        tally = {
            f"stop:{closed.stop.value}": 1,
            "reward_sum": closed.reward,
            "turns": turns,
            "sampled_tokens": sampled_tokens,
            "total_tokens": total_tokens,
            **token_stats.counts,
        }
        text = " ".join(f"{name} {number}" for name, number in tally.items())
        reply = self.scripts.call("complete", [job_id, attempt, index, blob, text])
        self._check_written(reply, job_id, attempt, index)

    def fail(self, job_id: str, attempt: int, failure: FailureClass, reason: str, *, final: bool = False) -> Outcome:
        """End the attempt. The job is queued again, or dead when the class's budget is spent. Raises Fenced.

        `final`: the job is dead whatever its budget, because playing it again would harm other jobs.
        """
        args = [job_id, attempt, failure.value, short_reason(reason), random.random(), int(final)]
        status, *rest = self.scripts.call("fail", args)
        if status == b"fenced":
            self._fenced(job_id, attempt)
        return Outcome(State(status.decode()), float(rest[0]))

    def release(self, job_id: str, attempt: int) -> None:
        """Give the job back at no cost. Raises Fenced."""
        if self.scripts.call("release", [job_id, attempt])[0] == b"fenced":
            self._fenced(job_id, attempt)

    def _check_written(self, reply: list[Any], job_id: str, attempt: int, index: int) -> None:
        if reply[0] == b"fenced":
            self._fenced(job_id, attempt)
        if reply[0] == b"conflict":
            conflict = JournalConflict(
                f"job {job_id}: the journal has {reply[1]} entries; entry {index} of attempt {attempt} does not fit"
            )
            conflict.length = reply[1]
            raise conflict

    def _fenced(self, job_id: str, attempt: int) -> NoReturn:
        raise Fenced(f"job {job_id}: attempt {attempt} no longer holds the lease")

    def take(
        self, groups: int, token: str, hold_s: float = HOLD_S, purpose: Purpose = Purpose.TRAIN
    ) -> list[TakenGroup]:
        """Hold that many groups, the lowest sequence first, or none. Fewer are held only at the end of a sealed run.

        Holds end unless they are renewed. After a silence of all takers and reapers, no hold ends before its consumer
        had time to renew it.
        """
        args = [groups, token, hold_s, purpose.value, constants.OUTAGE_S, constants.GRACE_S]
        return [self._taken(*row) for row in self.scripts.call("take", args)]

    def _taken(self, name: bytes, seq: bytes, size: int, *states: bytes) -> TakenGroup:
        group = name.decode()
        ids: dict[bytes, list[str]] = {b"done": [], b"dead": []}
        for sample, state in enumerate(states):
            ids[state].append(f"{self.run}/{group}/{sample}")
        return TakenGroup(group, int(seq), size, ids[b"done"], ids[b"dead"])

    def extend_hold(self, token: str, hold_s: float = HOLD_S) -> None:
        """Keep a batch for longer. Raises NotHeld."""
        if self.scripts.call("extend_hold", [token, hold_s])[0] != b"ok":
            raise NotHeld(f"run {self.run}: nothing is held under {token} any more")

    def ack(self, token: str, job_ids: Sequence[str]) -> None:
        """Acknowledge the groups of these jobs, and drop what they stored. Raises NotHeld, and then acknowledges
        none."""
        for job_id in job_ids:
            self.scripts.parse(job_id)
        status, *rest = self.scripts.call("ack", [token, *job_ids])
        if status != b"ok":
            group = f"{self.run}/{rest[0].decode()}"
            raise NotHeld(f"group {group} is not held under {token} (any more): another consumer has it or will get it")

    def reject(self, token: str, job_id: str, reason: str) -> None:
        """End a job of this hold that cannot be read as dead, of class job, and give the whole hold back. Raises
        NotHeld."""
        self.scripts.parse(job_id)
        if self.scripts.call("reject", [token, job_id, short_reason(reason)])[0] != b"ok":
            raise NotHeld(f"job {job_id} is not held under {token} any more")

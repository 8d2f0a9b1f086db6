"""The ledger: the truth about a run's jobs, groups and holds, in Redis.

Every change is one Lua script (lua/*.lua, keys in keys.py), atomic and safe to repeat with the same arguments, because
a lost reply is indistinguishable from a lost request. It knows nothing of Celery, and nothing of what a journal says
but the kind of its events.
"""

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

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
from rollq.ledger import outage
from rollq.ledger.keys import RUNS
from rollq.ledger.reader import LedgerView
from rollq.ledger.replies import Claim, Cursor, DeadLetter, JobState, Outcome, Refusal, State, Submission, TakenGroup
from rollq.ledger.scripts import SCRIPTS, sources
from rollq.token_stats import Fidelity
from rollq.trajectory import GRADED, Closed
from rollq.wire.codec import decode_event, decode_job, encode_job, is_observed, job_digest

__all__ = [
    "SCRIPTS",
    "Claim",
    "DeadLetter",
    "JobState",
    "Ledger",
    "Outcome",
    "Refusal",
    "State",
    "Submission",
    "TakenGroup",
    "sources",
]

LEASE_S = 15.0
"""A claim's lease: a worker that is silent for so long has lost its jobs."""
HOLD_S = 60.0
"""A batch's hold: a consumer that is silent for so long has lost its groups."""
MENDED_S = 30.0
"""A run is mended no more often than that: it means walking all of Redis."""
PUBLISHING_S = 5.0
"""A publication that is not confirmed by then is made again."""
CONFIRMED_S = 600.0
"""A published job that nobody has claimed by then is published again."""
REASON = 8000
"""Characters of a failure's reason that are kept."""


class Ledger(LedgerView):
    """One run's ledger. Every method may be called by many threads and processes at once.

    Raises LedgerError, naming run and key, when Redis refuses a write or a key was tampered with; redis.ConnectionError
    once the client's patience is spent.
    """

    def submit(
        self,
        jobs: Sequence[Job],
        *,
        publish_in_s: float = PUBLISHING_S,
        source: str = "",
        cursor: Cursor = Cursor(),  # noqa: B008 (frozen)
    ) -> Submission:
        """Enter one whole group, or jobs of a known one again.

        The caller publishes the new ids within `publish_in_s` seconds and confirms, or leaves it to a reaper (0). The
        source's cursor moves to `cursor` in the same step.
        Raises JobConflict when an id is known with other content, ContractError when the group is incomplete or its
        jobs disagree, LedgerError when the run is sealed; nothing has changed then.
        """
        if not jobs:
            return Submission()
        first = jobs[0]
        for job in jobs:
            if (job.run, job.group) != (self.run, first.group):
                raise ContractError(f"job {job.id}: belongs to another group or run than {self.run}/{first.group}")
            if (job.size, job.viable, job.purpose) != (first.size, first.viable, first.purpose):
                raise ContractError(f"job {job.id}: size, min_viable or purpose differ within the group")
        ids = [job.id for job in jobs]
        if len(set(ids)) < len(ids):
            raise ContractError(f"group {self.run}/{first.group}: a sample is there twice")
        args: list[Any] = [first.group, first.size, first.viable, first.purpose.value, publish_in_s, uuid.uuid4().hex]
        args += [source, f"{cursor.groups} {cursor.jobs} {cursor.mark}"]
        for job in jobs:
            args += [job.id, job_digest(job), job.budget.deadline_s, encode_job(job)]
        self._guard(RUNS, lambda: self.redis.zadd(RUNS, {self.run: self.now()}, nx=True))
        status, *rest = self._call("submit", args)
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

    def cursor(self, source: str) -> Cursor:
        """Where the source's producer was; what lies before counts as submitted again."""
        groups, jobs, mark = self._call("submission_cursor", [source, uuid.uuid4().hex])
        return Cursor(groups, jobs, mark.decode())

    def fix_budgets(self, budgets: Mapping[FailureClass, int]) -> None:
        """How many failures of these classes a job survives all but the last of; the run's first caller decides.

        Raises SettingsError when the run has others, ContractError for a class or a number that cannot be.
        """
        for failure, budget in budgets.items():
            if failure not in set(FailureClass) - {FailureClass.CANCELLED}:
                raise ContractError(f"run {self.run}: there is no budget for failures of class {failure}")
            if type(budget) is not int or budget < 1:
                raise ContractError(f"run {self.run}: a budget is a whole number of at least 1, not {budget!r}")
        args = [word for failure, budget in budgets.items() for word in (failure.value, budget)]
        status, *rest = self._call("fix_budgets", args)
        if status != b"ok":
            failure, theirs = FailureClass(rest[0].decode()), rest[1]
            raise SettingsError(
                f"run {self.run} has a budget of {theirs} failures of class {failure}, not {budgets[failure]}: budgets"
                " are fixed before its first group. Leave it as it is, or use another run."
            )

    def claim(self, job_id: str, *, worker: str, token: str, lease_s: float = LEASE_S) -> Claim | Refusal:
        """Lease a queued job. The token tells a repeat of this claim from another worker's.

        A job whose body cannot be read is failed as class job, so that it does not come again for ever.
        """
        self._check(job_id)
        status, *rest = self._call("claim", [job_id, token, worker, lease_s])
        if status != b"claimed":
            return Refusal(status.decode(), float(rest[0]) if rest else None)
        attempt, seq, set_aside, body, length = rest
        try:
            job = decode_job(body, job_id)
        except ContractError as e:
            self.fail(job_id, attempt, FailureClass.JOB, str(e))
            return Refusal("unreadable", detail=str(e))
        return Claim(replace(job, seq=int(seq)), attempt, bool(set_aside), length)

    def append(self, job_id: str, attempt: int, index: int, blob: bytes, lease_s: float = LEASE_S) -> None:
        """Journal one blob (index 0: the header) and renew the lease. Raises Fenced, or JournalConflict."""
        turn = int(is_observed(blob))
        self._written(self._call("append", [job_id, attempt, index, lease_s, turn, blob]), job_id, attempt, index)

    def renew(
        self, members: Sequence[tuple[str, int]], lease_s: float = LEASE_S, left_s: Sequence[float] = ()
    ) -> list[tuple[str, int]]:
        """Extend the leases of these (job id, attempt). Returns those that are lost: their episodes must stop.

        `left_s`, one a member: seconds to the attempt's deadline, past which its lease never lasts.
        """
        if not members:
            return []
        args: list[Any] = [lease_s]
        for (job_id, attempt), left in zip(members, left_s or [lease_s] * len(members), strict=True):
            args += [job_id, attempt, left]
        return [members[position] for position in self._call("renew_leases", args)]

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
        fidelity: Fidelity = Fidelity(),  # noqa: B008 (frozen)
    ) -> None:
        """Journal the `Closed` event of a graded episode and end the job as done; the numbers are for the stats.

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
            **fidelity.counts,
        }
        text = " ".join(f"{name} {number}" for name, number in tally.items())
        self._written(self._call("complete", [job_id, attempt, index, blob, text]), job_id, attempt, index)

    def fail(self, job_id: str, attempt: int, failure: FailureClass, reason: str, *, final: bool = False) -> Outcome:
        """End the attempt: the job is queued again, or dead when the class's budget is spent. Raises Fenced.

        `final`: it is dead whatever its budget, because playing it again would harm others.
        """
        text = reason[:REASON].encode("utf-8", "replace")
        status, *rest = self._call("fail", [job_id, attempt, failure.value, text, random.random(), int(final)])
        if status == b"fenced":
            self._fenced(job_id, attempt)
        return Outcome(State(status.decode()), float(rest[0]))

    def release(self, job_id: str, attempt: int) -> None:
        """Give the job back at no cost. Raises Fenced."""
        if self._call("release", [job_id, attempt])[0] == b"fenced":
            self._fenced(job_id, attempt)

    def bounce(self, job_id: str) -> None:
        """The job's message was taken by a worker that does not claim: have it published again."""
        self._check(job_id)
        self._call("republish", [job_id])

    def reap(self, limit: int = 100, broker_empty: bool = False, expire_until: float = 0.0) -> list[str]:
        """Expire leases, and return the ids of jobs to publish now; `confirm` those that were.

        `expire_until` is what a pulse answered: the time on Redis's clock after which no lease may expire.
        """
        args = [limit, int(broker_empty), expire_until, LEASE_S, PUBLISHING_S, CONFIRMED_S]
        return [job_id.decode() for job_id in self._call("reap", args)]

    def mend(self) -> int:
        """Make indexes and totals what the records of groups and jobs say.

        Returns how many entries were wrong; -1 when this was done moments ago. Walks all of Redis in one script.
        """
        return int(self._call("mend", [LEASE_S, HOLD_S, MENDED_S]))

    def confirm(self, ids: Sequence[str]) -> None:
        """These jobs were published."""
        if ids:
            self._call("confirm", [PUBLISHING_S, CONFIRMED_S, *ids])

    def take(
        self, groups: int, token: str, hold_s: float = HOLD_S, purpose: Purpose = Purpose.TRAIN
    ) -> list[TakenGroup]:
        """Hold that many groups, the lowest sequence first, or none; fewer only at the end of a sealed run.

        Holds end unless they are renewed; after a silence of all takers and reapers only once they could have been.
        """
        args = [groups, token, hold_s, purpose.value, outage.OUTAGE_S, outage.GRACE_S]
        rows = self._call("take", args)
        return [self._taken(*row) for row in rows]

    def _taken(self, name: bytes, seq: bytes, size: int, *states: bytes) -> TakenGroup:
        group = name.decode()
        ids: dict[bytes, list[str]] = {b"done": [], b"dead": []}
        for sample, state in enumerate(states):
            ids.setdefault(state, []).append(f"{self.run}/{group}/{sample}")
        return TakenGroup(group, int(seq), size, ids[b"done"], ids[b"dead"])

    def extend(self, token: str, hold_s: float = HOLD_S) -> None:
        """Keep a batch for longer. Raises NotHeld."""
        if self._call("extend_hold", [token, hold_s])[0] != b"ok":
            raise NotHeld(f"run {self.run}: nothing is held under {token} any more")

    def ack(self, token: str, job_ids: Sequence[str]) -> None:
        """The groups of these jobs are trained on; what they held is dropped. Raises NotHeld, and then acks none."""
        for job_id in job_ids:
            self._check(job_id)
        status, *rest = self._call("ack", [token, *job_ids])
        if status != b"ok":
            group = f"{self.run}/{rest[0].decode()}"
            raise NotHeld(f"group {group} is not held under {token} (any more): another consumer gets it or has it")

    def condemn(self, token: str, job_id: str, reason: str) -> None:
        """A job of this hold cannot be read: it is dead, of class job, and the whole hold goes back. Raises NotHeld."""
        self._check(job_id)
        if self._call("reject", [token, job_id, reason[:REASON].encode("utf-8", "replace")])[0] != b"ok":
            raise NotHeld(f"job {job_id} is not held under {token} any more")

    def seal(self) -> None:
        """No more groups will come: consumers get the short last batch, then an end."""
        self._guard("seal", lambda: self.redis.hset(self.keys.meta, "sealed", 1))

    def fix_hashes(self, tokenizer_hash: str, template_hash: str) -> bool:
        """The run's first caller decides; raises SettingsError for everybody whose hashes differ. False: unknown."""
        hashes_of_run = self._call("fix_hashes", [tokenizer_hash, template_hash])
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

    def _written(self, reply: list[Any], job_id: str, attempt: int, index: int) -> None:
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

"""The ledger's write side: what producers, workers and consumers do to a run's jobs, groups and
holds, in Redis.

Every change is one Lua script (lua/*.lua, keys in keys.py), atomic and safe to repeat with the same
arguments. It knows nothing of Celery. Of a journal it knows only the kinds of the events.
"""

import math
import random
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import redis

from rollq.errors import (
    ContractError,
    FailureClass,
    Fenced,
    Gap,
    JournalConflict,
    LedgerError,
    RollqError,
    SettingsError,
    UnknownSchema,
)
from rollq.events import GRADED, Closed
from rollq.job import Job
from rollq.ledger.conflict import conflict
from rollq.ledger.constants import SENDING_S
from rollq.ledger.keys import ACTIVE, RUNS
from rollq.ledger.records import check_group, entries, joined, kwargs_text, sample_of
from rollq.ledger.replies import Claim, Cursor, JobMessage, Outcome, Refusal, State, Submission
from rollq.ledger.scripts import Reply, Scripts, short_reason
from rollq.token_stats import TokenStats
from rollq.wire.codec import encode_job, job_digest
from rollq.wire.events import decode_event


class Ledger:
    """The write side of one run's ledger; `LedgerReader` reads it. Many threads and processes may
    call it at once.

    Every method raises LedgerError, naming run and key, when Redis refuses a write or a key cannot
    be read, and redis.ConnectionError when Redis cannot be reached.
    """

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.scripts = Scripts(client, run)
        self.redis = self.scripts.redis
        self.run = run
        self.keys = self.scripts.keys
        self._listed = False

    def submit(
        self,
        jobs: Sequence[Job],
        *,
        send_in_s: float = SENDING_S,
        source: str = "",
        cursor: Cursor = Cursor(),  # noqa: B008 (frozen)
        ahead: int = 0,
        token: str = "",
    ) -> Submission:
        """Enters one whole group, or jobs of a known group again.

        The caller sends the new ids within `send_in_s` seconds and confirms them; 0 leaves that to
        a reaper. In the same step the source's cursor moves to `cursor`. With `ahead`, a new group
        is entered only while fewer of its purpose are unacknowledged. A repeat with the same
        `token` gets the same answer.

        Raises JobConflict when an id is known with other content, ContractError when the group is
        incomplete or its jobs disagree, SettingsError when the run has another adapter or other
        template_kwargs, LedgerError when it is sealed, Gap when `cursor` does not follow the stored
        one because Redis has lost groups of the source. Then nothing has changed.
        """
        if not jobs:
            return Submission()
        first = jobs[0]
        ids = check_group(jobs, self.run)
        if not self._listed:
            # so that a Redis that loses its tail cannot have the group and not know the run
            self.activate()
            self._listed = True
        args: list[Any] = [first.group, first.size, first.viable, first.purpose.value, send_in_s]
        args += [token or uuid.uuid4().hex]
        args += [source, f"{cursor.groups} {cursor.jobs} {cursor.mark}", ahead, first.queue]
        args += [first.spare, encode_job(first), kwargs_text(first), first.adapter]
        for job in jobs:
            body = b"" if job == replace(first, sample=job.sample) else encode_job(job)
            args += [job.id, job_digest(job), job.budget.deadline_s, body]
        reply = self.scripts.call("submit", *args)
        if reply.status in ("new", "known"):
            self.activate()
        results = {
            "new": Submission(new=ids),
            "known": Submission(known=ids),
            "acked": Submission(acked=ids),
            "full": Submission(full=True),
        }
        if reply.status in results:
            return results[reply.status]
        if reply.status == "gap":
            raise self._gap(source, cursor.groups - 1, _cursor(reply))
        raise self._refusal(reply, jobs)

    def _refusal(self, reply: Reply, jobs: Sequence[Job]) -> RollqError:
        match reply.status:
            case "conflict":
                return conflict(self.scripts, reply.text("id"), jobs)
            case "sealed":
                return LedgerError(
                    f"run {self.run} is sealed: it takes no new groups. Use another run."
                )
            case "other":
                theirs, ours = reply.text("theirs") or "none", reply.text("ours") or "none"
                return SettingsError(
                    f"run {self.run} is played with {reply.text('name')} {theirs}, not {ours}: "
                    "use the run's, or another run"
                )
        return ContractError(
            f"group {self.run}/{jobs[0].group} is new and has {len(jobs)} of "
            f"{jobs[0].members} samples: submit it whole"
        )

    def _gap(self, source: str, submitted: int, stored: Cursor) -> Gap:
        gap = Gap(
            f"run {self.run}: Redis has lost groups of source {source}: it knows {stored.groups} "
            f"of the {submitted} that were submitted. Submit the source again; the same command "
            "line does"
        )
        gap.cursor = stored
        gap.source = source
        return gap

    def activate(self) -> None:
        """Lists the run, and has reapers look at it. Called after the script that gives it jobs, so
        that a reaper which found it idle before sees them when it looks again.
        """
        pipe = self.redis.pipeline(transaction=False)
        now = time.time()
        pipe.zadd(RUNS, {self.run: now}, nx=True)
        pipe.zadd(ACTIVE, {self.run: now})
        self.scripts.guard(RUNS, pipe.execute)

    def cursor(self, source: str) -> Cursor:
        """The cursor of a source's producer. Groups before that count as submitted again."""
        return _cursor(self.scripts.call("submission_cursor", source, uuid.uuid4().hex))

    def forget_source(self, source: str) -> None:
        """Deletes the cursor of a source that ends here."""
        self.scripts.command("hdel", self.keys.sources, source, f"{source}#")

    def forget_after(self, days: float) -> None:
        """Forgets acknowledged groups after that many days. A later submission of such a group is
        then a new one.
        """
        seconds = math.ceil(days * 86400)
        self.scripts.command("hset", self.keys.meta, "forget_after_s", seconds)

    def pin_budgets(self, budgets: Mapping[FailureClass, int]) -> None:
        """Pins the number of failures of each class that kills a job. The run's first caller
        decides.

        Raises SettingsError when the run has other budgets, ContractError for an unknown class or a
        number below 1.
        """
        for failure, budget in budgets.items():
            if failure not in set(FailureClass) - {FailureClass.CANCELLED}:
                raise ContractError(
                    f"run {self.run}: there is no budget for failures of class {failure}"
                )
            if type(budget) is not int or budget < 1:
                raise ContractError(
                    f"run {self.run}: budget of {failure} must be whole and at least "
                    f"1, not {budget!r}"
                )
        args: list[Any] = []
        for failure, budget in budgets.items():
            args += [FailureClass(failure).value, budget]
        reply = self.scripts.call("pin_budgets", *args)
        if reply.status != "ok":
            failure = FailureClass(reply.text("class"))
            theirs = reply["failures"]
            raise SettingsError(
                f"run {self.run} has a budget of {theirs} failures of class {failure}, not "
                f"{budgets[failure]}: budgets are pinned before its first group. Leave it as it "
                "is, or use another run."
            )

    def seal(self, submitted: Mapping[str, Cursor] | None = None) -> None:
        """Seals the run: no more groups will come. Consumers get the short last batch, then an end.

        `submitted`: how far the caller has submitted each source. Raises Gap, and does not seal,
        when Redis has lost groups of one of them.
        """
        args = [
            word for source, cursor in (submitted or {}).items() for word in (source, cursor.groups)
        ]
        reply = self.scripts.call("seal", *args)
        if reply.status == "gap":
            source = reply.text("source")
            raise self._gap(source, (submitted or {})[source].groups, _cursor(reply))
        if not reply["has_groups"]:  # its first group has listed the run
            self.activate()

    def pin_tokenizer(self, tokenizer_hash: str, template_hash: str) -> None:
        """Pins the tokenizer and chat template of the run's episodes; else its first claim does.

        Raises SettingsError when the run has others.
        """
        ours = [tokenizer_hash, template_hash]
        reply = self.scripts.call("pin_tokenizer", *ours)
        if [reply.text("tokenizer"), reply.text("template")] != ours:
            raise SettingsError(self._other_tokenizer(reply, *ours))

    def _other_tokenizer(self, reply: Reply, tokenizer_hash: str, template_hash: str) -> str:
        kind, theirs, ours = "chat template", reply.text("template"), template_hash
        if reply.text("tokenizer") != tokenizer_hash:
            kind, theirs, ours = "tokenizer", reply.text("tokenizer"), tokenizer_hash
        return (
            f"run {self.run} is played with another {kind} ({theirs[:12]}, not {ours[:12]}): use "
            "the run's tokenizer (--tokenizer), a queue of its own for each model (queue, "
            "--queues), or another run"
        )

    def reap(self, limit: int = 100, empty_queues: Collection[str] = ()) -> list[JobMessage]:
        """Expires leases, and returns what to send now, the most urgent first; `confirm` what was
        sent.

        `empty_queues`: the queues (`Job.queue`) for which no message waits at the broker.
        """
        reply = self.scripts.call("reap", limit, *empty_queues)
        return [
            JobMessage(job_id.decode(), queue.decode(), priority)
            for job_id, queue, priority in reply["jobs"]
        ]

    def confirm(self, ids: Sequence[str]) -> None:
        """Records that these jobs were sent."""
        if ids:
            self.scripts.call("confirm", *ids)

    def resend(self, job_id: str, after_s: float = 0.0) -> None:
        """Has the job sent again, because a worker took its message and does not claim it.
        `after_s`: so many seconds later, more than constants.SENDING_S; else at once.
        """
        self.scripts.parse(job_id)
        self.scripts.call("resend", job_id, after_s)

    def claim(
        self,
        job_id: str,
        *,
        worker: str,
        token: str,
        tokenizer_hash: str = "",
        template_hash: str = "",
    ) -> Claim | Refusal:
        """Leases a queued job. The token tells a repeat of this claim from another worker's, and is
        part of the lease.

        The run's first claim pins its tokenizer and chat template. A job whose body cannot be read
        is failed as class job, so that it does not come again forever.
        """
        self.scripts.parse(job_id)
        ours = (tokenizer_hash, template_hash)
        reply = self.scripts.call("claim", job_id, token, worker, *ours)
        match reply.status:
            case "claimed":
                return self._claim(job_id, token, reply)
            case "tokenizer":
                return Refusal("tokenizer", detail=self._other_tokenizer(reply, *ours))
            case "early":
                return Refusal("early", float(reply["not_before"]))
        return Refusal(reply.status)

    def _claim(self, job_id: str, token: str, reply: Reply) -> Claim | Refusal:
        attempt = reply["attempt"]
        lease = f"{attempt}#{token}"
        try:
            job = sample_of(reply["body"], job_id)
        except UnknownSchema as e:
            self.release(job_id, lease)
            return Refusal("schema", detail=str(e))
        except ContractError as e:
            self.fail(job_id, lease, FailureClass.JOB, str(e))
            return Refusal("unreadable", detail=str(e))
        return Claim(
            job=job.member(job.sample, reply["seq"]),
            attempt=attempt,
            lease=lease,
            set_aside=bool(reply["set_aside"]),
            journal=reply["entries"],
            oldest_step=reply.step("oldest"),
        )

    def journal(self, job_id: str) -> list[bytes]:
        """The claimed job's journal to go on with: header and events, encoded. Raises
        ContractError.
        """
        group, _ = self.scripts.parse(job_id)
        pipe = self.redis.pipeline(transaction=False)
        pipe.lrange(self.keys.journal(job_id), 0, -1)
        pipe.hgetall(self.keys.prompts(group))
        blobs, prompts = self.scripts.guard(f"journal of job {job_id}", pipe.execute)
        return joined(blobs, prompts, job_id)

    def append(self, job_id: str, lease: str, index: int, blobs: Sequence[bytes]) -> None:
        """Journals blobs that follow one another, the first at `index` (0 is the header), and
        renews the lease if a third of it is over. Raises Fenced, or JournalConflict.
        """
        reply = self.scripts.call("append", job_id, lease, index, *entries(index, blobs))
        self._check_written(reply, job_id, lease, index)

    def renew_leases(
        self, members: Sequence[tuple[str, str]], left_s: Sequence[float] = ()
    ) -> list[tuple[str, str]]:
        """Extends the leases of these (job id, lease). Returns the lost ones, whose episodes must
        stop.

        `left_s`: for each member, the seconds to the attempt's deadline. A lease never lasts past
        it.
        """
        if not members:
            return []
        args: list[Any] = []
        for (job_id, lease), left in zip(members, left_s or [math.inf] * len(members), strict=True):
            args += [job_id, lease, left]
        lost = self.scripts.call("renew_leases", *args)["lost"]
        return [members[position] for position in lost]

    def complete(
        self,
        job_id: str,
        lease: str,
        index: int,
        blobs: Sequence[bytes],
        *,
        turns: int = 0,
        sampled_tokens: int = 0,
        total_tokens: int = 0,
        token_stats: TokenStats = TokenStats(),  # noqa: B008 (frozen)
    ) -> None:
        """Journal the last blobs of a graded episode and end the job as done. The numbers are for
        the stats.

        Raises Fenced, JournalConflict, or ContractError when the last event is not a graded
        `Closed`.
        """
        closed = decode_event(blobs[-1], job_id)
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
        totals = " ".join(f"{name} {number}" for name, number in tally.items() if number)
        reply = self.scripts.call("complete", job_id, lease, index, totals, *entries(index, blobs))
        self._check_written(reply, job_id, lease, index)

    def fail(self, job_id: str, lease: str, failure: FailureClass, reason: str) -> Outcome:
        """Ends the attempt. The job is queued again, or dead when the class's budget is spent.
        Raises Fenced.
        """
        args = [job_id, lease, failure.value, short_reason(reason), random.random()]
        reply = self.scripts.call("fail", *args)
        if reply.status == "fenced":
            self._raise_fenced(job_id, lease)
        return Outcome(State(reply.status), float(reply["not_before"]))

    def release(self, job_id: str, lease: str, *, restart: bool = False) -> None:
        """Gives the job back at no cost. With `restart`, the next attempt begins without its
        journal, which is set aside. Raises Fenced.
        """
        if self.scripts.call("release", job_id, lease, int(restart)).status == "fenced":
            self._raise_fenced(job_id, lease)

    def _check_written(self, reply: Reply, job_id: str, lease: str, index: int) -> None:
        if reply.status == "fenced":
            self._raise_fenced(job_id, lease)
        if reply.status == "conflict":
            length = reply["length"]
            conflict = JournalConflict(
                f"job {job_id}: entry {index} of attempt {_attempt(lease)} does not fit a "
                f"journal of {length} entries"
            )
            conflict.length = length
            raise conflict

    def _raise_fenced(self, job_id: str, lease: str) -> NoReturn:
        raise Fenced(f"job {job_id}: attempt {_attempt(lease)} no longer holds the lease")


def _attempt(lease: str) -> str:
    return lease.partition("#")[0]


def _cursor(reply: Reply) -> Cursor:
    return Cursor(reply["groups"], reply["jobs"], reply.text("mark"))

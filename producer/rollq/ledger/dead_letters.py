"""Dead letters: jobs that ended without a grade. People requeue, discard or cancel jobs, or delete
the whole run.

Each act is one script that changes everything or nothing. Counts stay true: a discarded job stays
counted as dead, and a group that comes back no longer counts as dropped.
"""

import time
import uuid
from collections.abc import Sequence

import redis

from rollq.errors import FailureClass, LedgerError
from rollq.job import Purpose
from rollq.ledger.keys import ACTIVE, RUNS
from rollq.ledger.scripts import Scripts, short_reason
from rollq.ledger.stored import text

PAGE = 500
"""Number of jobs that are looked at in one round trip."""


class DeadLetters:
    """The dead jobs of one run. Every method may be repeated: what has happened already stays as it
    is.
    """

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.scripts = Scripts(client, run)
        self.redis = self.scripts.redis
        self.run = run
        self.keys = self.scripts.keys

    def ids(self, failure: FailureClass | None = None) -> list[str]:
        """Ids of the dead jobs, the longest dead first. With a class, only that class."""
        members: list[bytes] = self.scripts.command("zrange", self.keys.dead, 0, -1)
        ids = [job_id.decode("utf-8", "replace") for job_id in members]
        if failure is None:
            return ids
        chosen = []
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            classes = self._classes(page)
            chosen += [job_id for job_id in page if classes[job_id] == failure.value.encode()]
        return chosen

    def _classes(self, job_ids: Sequence[str]) -> dict[str, bytes | None]:
        """The class of the last failure of each job."""
        pipe = self.redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipe.hget(self.keys.job(job_id), "class")
        replies = self.scripts.guard(self.keys.dead, pipe.execute)
        return dict(zip(job_ids, replies, strict=True))

    def requeue(self, job_id: str, token: str = "") -> None:
        """Queues a dead job again, with no failures and an empty journal. The old journal is set
        aside. `token`: a name of this call, to make it again.

        Its group comes back if it was dropped. Raises LedgerError when the job is not dead or was
        discarded, or when its group was made ready without it.
        """
        self._act(job_id, "requeued", "requeue", token or uuid.uuid4().hex)
        self.scripts.command("zadd", ACTIVE, {self.run: time.time()})

    def discard(self, job_id: str) -> None:
        """Deletes what a dead job holds in Redis. Raises LedgerError when it is not dead."""
        self._act(job_id, "dropped", "delete_dead")

    def cancel(self, job_id: str, reason: str = "cancelled") -> None:
        """Ends a job that is queued or being played as dead, of class cancelled. Raises LedgerError
        when it has ended.
        """
        self._act(job_id, "cancelled", "cancel", short_reason(reason))

    def open_groups(self) -> list[str]:
        """Names of the groups that have unfinished members."""
        names: list[bytes] = []
        for purpose in Purpose:
            key = f"{self.keys.prefix}open:{purpose}"
            names += self.scripts.command("zrange", key, 0, -1)
        return [text(name) for name in names]

    def cancel_group(self, group: str, reason: str = "cancelled") -> int:
        """Ends the unfinished members of a group as dead, of class cancelled. Returns how many
        there were. Raises LedgerError for an unknown group.
        """
        reply = self.scripts.call("cancel_group", group, short_reason(reason))
        if reply.status == "unknown":
            raise LedgerError(
                f"group {self.run}/{group} is unknown: run {self.run} has no such group"
            )
        return int(reply["cancelled"])

    def forget_run(self) -> int:
        """Deletes every key of the run. Returns how many there were.

        Workers that play it are fenced and consumers lose their hold. May be repeated after an
        interruption.
        """
        pattern = self.keys.prefix.translate({ord(c): f"\\{c}" for c in "*?[]\\"}) + "*"
        # What makes the run known goes first, so that its workers write no new keys meanwhile.
        deleted = int(self.scripts.command("unlink", self.keys.meta))
        for index in (RUNS, ACTIVE):
            self.scripts.command("zrem", index, self.run)
        while True:
            keys = self.scripts.guard(
                "forgetting it", lambda: list(self.redis.scan_iter(pattern, count=PAGE))
            )
            if not keys:
                return deleted
            for start in range(0, len(keys), PAGE):
                deleted += self.scripts.command("unlink", *keys[start : start + PAGE])

    def _act(self, job_id: str, done: str, script: str, *args: str | bytes) -> None:
        """Runs the script. Raises LedgerError when it refuses the job. `done`: the participle of
        the act, for the error.
        """
        self.scripts.parse(job_id)
        reply = self.scripts.call(script, job_id, *args)
        state = reply.text("state") if "state" in reply else ""
        match reply.status:
            case "ok":
                return
            case "unknown":
                raise LedgerError(f"job {job_id} is unknown: run {self.run} has no such job")
            case "gone":
                why = "its body is gone. Submit its task in a new group."
            case "replaced":
                why = (
                    "its group was dropped, and the run's admission (`Client.limit_staleness`) "
                    "has let others in for it. Submit its task in a new group, or let "
                    "`Client.refill` or `rollq submit --set refill=1` do it."
                )
            case "group":
                why = (
                    f"its group is {state} without it, and is handed out once. Submit its task "
                    "in a new group."
                )
            case _ if state == "surplus":
                why = "it is surplus: its group had enough graded members without it."
            case _ if script == "cancel":
                why = f"it is {state} (has ended)"
            case _:
                why = f"it is {state} (only dead jobs are)"
        raise LedgerError(f"job {job_id} cannot be {done}: {why}")

"""The ledger's numbers, each in one place. Every script starts with them (scripts.py,
lua/common.lua).
"""

from rollq.errors import FailureClass

LEASE_S = 15.0
"""Seconds without a renewal after which a worker has lost the job."""
HOLD_S = 60.0
"""Seconds without a renewal after which a consumer has lost the batch."""
SENDING_S = 5.0
"""Seconds after which a message that was not confirmed is sent again."""
CONFIRMED_S = 600.0
"""Seconds after which a job that no worker has claimed is sent again."""
BUDGETS = {
    FailureClass.ENGINE: 5,
    FailureClass.USER: 5,
    FailureClass.WORKER: 5,
    FailureClass.REWARD: 5,
    FailureClass.TEACHER: 5,
    FailureClass.AGENT: 3,
    FailureClass.ENV: 2,
    FailureClass.JOB: 2,
    FailureClass.CANCELLED: 1,
}
"""The number of failures of each class that kills a job, unless the run has its own
(`Ledger.pin_budgets`).
"""
INFRASTRUCTURE = (
    FailureClass.ENGINE,
    FailureClass.USER,
    FailureClass.WORKER,
    FailureClass.REWARD,
    FailureClass.TEACHER,
)
"""Classes after whose failures the next attempt waits for a backoff and goes on with the journal.
After the others it starts again with an empty one.
"""
LONGEST_BACKOFF_S = 30.0
"""Upper bound of a backoff. The backoff after failure n is a random time between 1 s and 2**n s, or
this if it is less.
"""
LONGEST_REASON = 8000
"""Number of characters of a failure's reason that are kept."""
OUTAGE_S = 5.0
"""A silence of Redis up to this long costs no lease: each lease had at least twice that left when
Redis went away.
"""
GRACE_S = 7.5
"""Seconds without expiry after an outage. A heartbeat comes every 5 s, and one that waits for Redis
finds out within 2 s that it is back (rollq.servers.retry.BACKOFF).
"""
WAKE_S = 60
"""Seconds for which a consumer's wake-up is kept."""
INTERRUPTED = 0
"""Priority at the broker of jobs that were played before: what is half done is finished first.
Lower ones go first; the numbers are steps of kombu's Redis transport.
"""
EVAL = 3
"""Priority of new jobs for evaluation."""
NEW = 6
"""Priority of new jobs for training."""
LONGEST_SKIP = 64
"""Number of characters of the reason for which a trainer skips a group. Groups are counted by
reason.
"""
STALE = "stale"
"""The reason when a group is beyond the run's bound on staleness. It is replaced as a dropped one
is.
"""

"""The ledger's numbers, each in one place. Scripts get them as their first argument (scripts.py, lua/common.lua)."""

from rollq.errors import FailureClass

LEASE_S = 15.0
"""A worker that does not renew a lease for this long has lost the job."""
HOLD_S = 60.0
"""A consumer that does not renew a hold for this long has lost the batch."""
PUBLISHING_S = 5.0
"""A publication that is not confirmed by then is made again."""
CONFIRMED_S = 600.0
"""A published job that no worker has claimed by then is published again."""
BUDGETS = {
    FailureClass.ENGINE: 5,
    FailureClass.USER: 5,
    FailureClass.WORKER: 5,
    FailureClass.ENV: 2,
    FailureClass.JOB: 2,
    FailureClass.CANCELLED: 1,
}
"""The number of failures of each class that kills a job, unless the run has its own (`Ledger.fix_budgets`)."""
INFRASTRUCTURE = (FailureClass.ENGINE, FailureClass.USER, FailureClass.WORKER)
"""After these the next attempt waits for a backoff and goes on with the journal; after the others it starts afresh."""
LONGEST_BACKOFF_S = 30.0
"""The backoff after failure n is a random time between 1 s and the lesser of 2**n s and this."""
LONGEST_REASON = 8000
"""Characters of a failure's reason that are kept."""
OUTAGE_S = 5.0
"""A shorter silence costs no lease: each had at least twice that left when Redis went away."""
GRACE_S = 7.5
"""A heartbeat comes every 5 s; one that waits for Redis finds out within 2 s that it is back (connection.RETRIES)."""

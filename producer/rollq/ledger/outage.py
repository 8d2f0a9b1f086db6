"""The pulse of a Redis: whether it has been within the workers' reach, which decides whether leases may expire.

Every reaper stamps one key once a second. After a silence of OUTAGE_S nobody can tell whether Redis was away, so that
nobody could renew a lease, or the workers, so that theirs are lost; for GRACE_S nothing expires then: live workers
renew within that time, and what dead ones held comes back right after it. The silence is one of all reapers of that
Redis, so that a reaper which is slow with many runs is none.
"""

from typing import Any

import redis

from rollq.ledger.keys import PULSE
from rollq.ledger.retry import translated
from rollq.ledger.scripts import pulse

OUTAGE_S = 5.0
"""Shorter ones cost no lease: each has twice that left when Redis goes away."""
GRACE_S = 7.5
"""A heartbeat comes every 5 s; one that waits for Redis finds out within 2 s that it is back (connection.RETRIES)."""


class Pulse:
    """Shared by all reapers of a Redis."""

    def __init__(self, client: "redis.Redis") -> None:
        self._script: Any = client.register_script(pulse())

    def beat(self) -> float:
        """Stamp. Returns until when leases may expire, on Redis's clock; 0.0 after an outage. Raises LedgerError."""
        try:
            return float(self._script(keys=[PULSE], args=[OUTAGE_S, GRACE_S]))
        except redis.ResponseError as e:
            raise translated(e, PULSE) from e

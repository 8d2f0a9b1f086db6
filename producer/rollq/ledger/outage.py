"""Tells an outage of Redis from dead workers, because only dead workers' leases may expire.

Every reaper stamps one key once a second, so its last stamp says when any reaper last reached that Redis. After a
silence of OUTAGE_S there are two explanations: Redis was away and live workers could not renew, or all workers were
away. So nothing expires for GRACE_S. Live workers renew within that time, and the jobs of dead workers come back right
after it.
"""

from typing import Any

import redis

from rollq.ledger import constants
from rollq.ledger.connection import translated
from rollq.ledger.keys import OUTAGE_STAMP
from rollq.ledger.scripts import outage_script


class OutageDetector:
    """The stamp that all reapers of a Redis share."""

    def __init__(self, client: "redis.Redis") -> None:
        self._script: Any = client.register_script(outage_script())

    def stamp(self) -> float:
        """Stamp, and return the time on Redis's clock until which leases may expire; 0.0 after an outage. Raises
        LedgerError."""
        try:
            return float(self._script(keys=[OUTAGE_STAMP], args=[constants.OUTAGE_S, constants.GRACE_S]))
        except redis.ResponseError as e:
            raise translated(e, OUTAGE_STAMP) from e

"""Tells an outage of Redis from dead workers, which decides whether leases may expire.

Every reaper stamps one key once a second, so its last stamp says when any reaper of that Redis last reached it. After a
silence of OUTAGE_S it is unknown whether Redis was away, so that live workers could not renew, or all workers were. So
nothing expires for GRACE_S: live workers renew within that time, and the jobs of dead ones come back right after it.
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
        """Stamp, and return until when leases may expire, on Redis's clock: 0.0 after an outage. Raises LedgerError."""
        try:
            return float(self._script(keys=[OUTAGE_STAMP], args=[constants.OUTAGE_S, constants.GRACE_S]))
        except redis.ResponseError as e:
            raise translated(e, OUTAGE_STAMP) from e

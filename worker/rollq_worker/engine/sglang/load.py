"""The load that an engine reports: the reply of SGLang's `GET /v1/loads`.

The invariant: a reply that cannot be read is not a load. It knows nothing of HTTP.
"""

import math
from collections.abc import Mapping

from rollq_worker.engine.load import EngineLoad

PATH = "/v1/loads?include=core"
"""A router has no such path, and neither has an old SGLang."""


def read_load(reply: object) -> EngineLoad | None:
    """The load in the JSON of the reply; None when there is none."""
    ranks = reply.get("loads") if isinstance(reply, Mapping) else None
    if not isinstance(ranks, list) or not ranks:
        return None
    try:
        load = EngineLoad(
            running=sum(int(rank["num_running_reqs"]) for rank in ranks),
            waiting=sum(int(rank["num_waiting_reqs"]) for rank in ranks),
            token_usage=max(float(rank["token_usage"]) for rank in ranks),
            used_tokens=sum(int(rank.get("num_used_tokens", 0)) for rank in ranks),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return load if 0 <= load.token_usage < math.inf else None  # also NaN, which no limit is below

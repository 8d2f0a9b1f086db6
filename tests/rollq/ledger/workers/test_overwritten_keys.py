"""A key of no run that another program has overwritten is named, with the remedy."""

from collections.abc import Callable
from typing import Any

import pytest

from rollq.errors import LedgerError
from rollq.ledger.keys import ACTIVE, REAPER, RUNS, WORKERS
from rollq.ledger.workers.live_workers import live_workers, register, unregister
from rollq.ledger.workers.reaping import ActiveRuns, ReaperRole
from tests.rollq.client.fleets import WORKER


@pytest.mark.parametrize(
    ("key", "call", "remedy"),
    [
        (ACTIVE, lambda client: ActiveRuns(client).names(), "it fills again"),
        (ACTIVE, lambda client: ActiveRuns(client).look(), "it fills again"),
        (RUNS, lambda client: ActiveRuns(client).next_of_all(), "submit each run again"),
        (REAPER, lambda client: ReaperRole(client, "a").take(), "workers make it again"),
        (WORKERS, lambda client: register(client, WORKER), ""),
        (WORKERS, live_workers, ""),
        (WORKERS, lambda client: unregister(client, "w"), ""),
    ],
)
def test_an_overwritten_key_is_named(
    client: Any, key: str, call: Callable[[Any], object], remedy: str
) -> None:
    client.lpush(key, "junk")
    with pytest.raises(LedgerError, match=f"{key}: .*Delete that key.*{remedy}"):
        call(client)

"""What `rollq worker` says of its metrics before it plays."""

import pytest

from rollq.metrics.exposition import Exposition
from tests.rollq.commands.lines import rollq


@pytest.fixture
def taken_port() -> str:
    return Exposition().serve("127.0.0.1", 0).rpartition(":")[2].partition("/")[0]


def test_a_port_for_metrics_that_is_in_use(redis_url: str, taken_port: str) -> None:
    done = rollq("worker", "--redis", redis_url, "--metrics", taken_port, code=2)
    assert f"metrics cannot be served at 127.0.0.1:{taken_port}" in done.stderr and "another port" in done.stderr

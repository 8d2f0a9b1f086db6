"""What `rollq worker` says of its metrics before it plays."""

import pytest

from rollq.metrics.exposition import Exposition
from rollq_worker.commands.worker import listen_address
from tests.rollq.commands.lines import rollq


@pytest.fixture
def taken_port() -> str:
    return Exposition().serve("127.0.0.1", 0).rpartition(":")[2].partition("/")[0]


def test_a_port_for_metrics_that_is_in_use(redis_url: str, taken_port: str) -> None:
    done = rollq("worker", "--redis", redis_url, "--metrics", taken_port, code=2)
    assert (
        f"metrics cannot be served at 127.0.0.1:{taken_port}" in done.stderr
        and "another port" in done.stderr
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9465", ("127.0.0.1", 9465)),
        (":9465", ("127.0.0.1", 9465)),
        ("0.0.0.0:9465", ("0.0.0.0", 9465)),
        ("::1:0", ("::1", 0)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_metrics_are_for_this_machine_unless_told_otherwise(
    text: str, address: tuple[str, int]
) -> None:
    assert listen_address(text) == address

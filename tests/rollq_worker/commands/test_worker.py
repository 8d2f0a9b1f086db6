"""What `rollq worker` says of its watchers before it plays."""

from pathlib import Path

import pytest

from rollq.metrics.exposition import Exposition
from rollq_worker.process.monitoring import otlp
from tests.rollq.commands.lines import rollq


@pytest.fixture
def taken_port() -> str:
    return Exposition().serve("127.0.0.1", 0).rpartition(":")[2].partition("/")[0]


def test_a_port_for_metrics_that_is_in_use(redis_url: str, taken_port: str) -> None:
    done = rollq("worker", "--redis", redis_url, "--metrics-port", taken_port, code=2)
    assert f"metrics cannot be served at 127.0.0.1:{taken_port}" in done.stderr and "another port" in done.stderr


def test_traces_without_their_packages_are_a_warning(redis_url: str, taken_port: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk.trace.export'] = None\n")
    env = {otlp.ENDPOINTS[1]: "http://127.0.0.1:4318", "PYTHONPATH": str(tmp_path)}
    done = rollq("worker", "--redis", redis_url, "--metrics-port", taken_port, env=env, code=2)
    assert "warning" in done.stderr and "[traces]" in done.stderr

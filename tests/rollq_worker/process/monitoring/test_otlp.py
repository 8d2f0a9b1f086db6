"""Spans on their way to a collector, and a worker without one."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rollq.errors import SettingsError
from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.monitoring import otlp


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*otlp.ENDPOINTS, otlp.QUEUE, "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


class Collector(ThreadingHTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_collector_gets_the_spans_of_this_worker(
    runner: JobRunner, ledger: Ledger, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    export = otlp.TraceExport()
    export.attach(runner)
    ledger.submit([Job(run="r", group="g", env="shop", task=0)])
    runner.run("r/g/0")
    export.flush()
    (resource,) = [spans for request in collector.requests for spans in request.resource_spans]
    said = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert (said["service.name"], said["service.instance.id"]) == (otlp.SERVICE, runner.name)
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert names.count("rollout") == 1 and {"turn", "engine.generate", "environment.step"} < set(names)


@pytest.mark.parametrize(
    ("variables", "there"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, "http://a:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_SDK_DISABLED": "true"}, None),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b/v1/traces"}, "http://b/v1/traces"),
    ],
)
def test_where_traces_go_to(variables: dict[str, str], there: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert otlp.endpoint() == there


def test_a_worker_without_metrics_and_traces_imports_nothing_for_them() -> None:
    code = """
import sys
from rollq_worker.process import celery_app
from rollq_worker.process.monitoring import metrics, otlp
assert otlp.endpoint() is None
parts = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "prometheus_client")  # redis-py imports other ones
print([name for name in sys.modules if name.startswith(parts)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_without_the_packages_there_are_no_traces_and_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(SettingsError, match=r"opentelemetry.*pip install.*\[traces\]"):
        otlp.TraceExport()

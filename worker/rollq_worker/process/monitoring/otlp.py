"""Sends a worker's spans to a collector by OTLP over HTTP, as the standard variables `OTEL_*` say.

rollq imports nothing of OpenTelemetry unless one of ENDPOINTS is set. Spans travel in a thread of the library. When the
collector is away the library logs it, and drops spans when its queue is full; rollouts never wait for it.
"""

import logging
import os
import threading
from typing import TYPE_CHECKING

from rollq.extras import needs
from rollq_worker.process.job_task import JobRunner

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
QUEUE = "OTEL_BSP_MAX_QUEUE_SIZE"
MOST_SPANS = 32_768
"""Spans that wait to be sent, unless QUEUE says otherwise: an episode's spans come all at once, at its end."""
FLUSH_S = 1.0
"""Most seconds that a stopping worker waits for the collector."""
SERVICE = "rollq-worker"


def endpoint() -> str | None:
    """Where traces go to; None: there are none."""
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none" or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return None
    return next((value for name in ENDPOINTS if (value := os.environ.get(name, "").strip())), None)


class TraceExport:
    """Traces the attempts of a worker. `exporter` is OTLP's unless another is given.

    Raises SettingsError when OpenTelemetry's packages are not installed.
    """

    def __init__(self, exporter: "SpanExporter | None" = None) -> None:
        with needs("traces"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)  # it would log every try
        most = None if os.environ.get(QUEUE) else MOST_SPANS
        self._processor = BatchSpanProcessor(exporter or OTLPSpanExporter(), max_queue_size=most)

    def attach(self, runner: JobRunner) -> None:
        """Trace this worker's attempts. OTEL_SERVICE_NAME takes the place of SERVICE."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        from rollq_worker.process.monitoring.traces import AttemptTraces

        name = os.environ.get("OTEL_SERVICE_NAME") or SERVICE
        provider = TracerProvider(
            resource=Resource.create({"service.name": name, "service.instance.id": runner.name}),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._processor)
        AttemptTraces(provider.get_tracer("rollq")).attach(runner)

    def flush(self) -> None:
        """Send what is left, if the collector takes it in FLUSH_S seconds."""
        flushing = threading.Thread(target=self._processor.force_flush, name="rollq-traces", daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)

"""Serves metrics to Prometheus over HTTP. They are read when Prometheus asks, and never in between.

It knows no metric. The library's own metrics of the process (CPU, memory, open files) come with
them.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rollq.errors import SettingsError
from rollq.metrics.metric import Kind, Metric, Sample
from rollq.urls import in_address

log = logging.getLogger("rollq")

PATH = "/metrics"
FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily}


class Exposition(Collector):
    """The metrics of this process at one address. `read` gives them; it is called by one thread at
    a time.
    """

    def __init__(self) -> None:
        self.read: Callable[[], Iterable[Sample]] = tuple
        """Set it when there is something to read. Until then there are the process's own metrics.
        """
        self._reading = threading.Lock()

    def serve(self, host: str, port: int) -> str:
        """Answers at this address, in threads, until the process ends. Port 0: a free one. Returns
        the page's address.

        Raises SettingsError when the address cannot be used.
        """
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        try:
            server, _ = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as e:  # the latter: a port beyond 65535
            why = getattr(e, "strerror", None) or e
            raise SettingsError(
                f"metrics cannot be served at {host}:{port}: {why}: choose another address or "
                "another port (each process needs its own)"
            ) from e
        return f"http://{in_address(host)}:{server.server_port}{PATH}"

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See prometheus_client."""
        families: dict[Metric, CounterMetricFamily | GaugeMetricFamily] = {}
        with self._reading:
            samples = list(self.read())
        for metric, labels, value in samples:
            family = families.get(metric)
            if family is None:
                family = families[metric] = FAMILIES[metric.kind](
                    metric.name, metric.says, labels=metric.labels
                )
            family.add_metric(labels, value)
        yield from families.values()

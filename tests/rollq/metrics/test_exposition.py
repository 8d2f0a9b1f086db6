"""A page of metrics over HTTP, and an address that cannot be used."""

import re
import urllib.request
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollq.errors import SettingsError
from rollq.metrics.exposition import Exposition
from rollq.metrics.metric import Sample, counter, gauge

TURNS, SLOTS = counter("turns", "Turns.", "run"), gauge("slots", 'A "gauge" of\nslots.')


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


def test_a_page_has_what_is_read_when_it_is_asked_for() -> None:
    exposition, count = Exposition(), iter(range(100))
    address = exposition.serve("127.0.0.1", 0)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", address)
    assert "process_cpu_seconds_total" in page(address) and "turns" not in page(address)
    exposition.read = lambda: [
        Sample(TURNS, ("a",), next(count)),
        Sample(TURNS, ('b"\n\\',), 7),
        Sample(SLOTS, (), 0.5),
    ]
    for n in range(3):
        families = {family.name: family for family in text_string_to_metric_families(page(address))}
        assert (families["turns"].type, families["slots"].type) == ("counter", "gauge")
        assert families["slots"].documentation == SLOTS.says
        found = [(sample.name, sample.labels, sample.value) for sample in families["turns"].samples]
        assert found == [("turns_total", {"run": "a"}, n), ("turns_total", {"run": 'b"\n\\'}, 7)]


def test_a_page_that_cannot_be_read_is_an_error_and_the_next_one_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exposition = Exposition()
    address = exposition.serve("127.0.0.1", 0)
    exposition.read = lambda: [Sample(SLOTS, (), 1 / 0)]
    with pytest.raises(HTTPError):
        page(address)
    exposition.read = lambda: [Sample(SLOTS, (), 1)]
    assert "slots 1.0" in page(address)


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("no.such.host.invalid", 0), ("127.0.0.1", 65536)]
)
def test_an_address_that_is_not_this_machines_is_refused(host: str, port: int) -> None:
    with pytest.raises(SettingsError, match=f"metrics cannot be served at {host}:{port}: "):
        Exposition().serve(host, port)


def test_a_port_that_is_in_use_is_refused() -> None:
    port = int(Exposition().serve("127.0.0.1", 0).rpartition(":")[2].partition("/")[0])
    with pytest.raises(
        SettingsError, match=f"127.0.0.1:{port}: .*in use.*each process needs its own"
    ):
        Exposition().serve("127.0.0.1", port)

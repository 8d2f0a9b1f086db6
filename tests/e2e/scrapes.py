"""Reads pages of metrics as Prometheus does, and remembers every number."""

import urllib.request
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its labels."""


class Scrapes:
    """All numbers of some pages so far, by series; `instance` is the page's port."""

    def __init__(self) -> None:
        self.ports: set[int] = set()
        self.seen: defaultdict[Series, set[float]] = defaultdict(set)

    def read(self, port: int) -> dict[Series, float]:
        """One page now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        found = {
            (sample.name, (*sorted(sample.labels.items()), ("instance", str(port)))): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
        for series, value in found.items():
            self.seen[series].add(value)
        return found

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric over all pages that answer now, for these labels."""
        wanted, total = set(labels.items()), 0.0
        for port in sorted(self.ports):
            total += sum(
                value
                for (of, has), value in self.read(port).items()
                if of == name and wanted <= set(has)
            )
        return total

    def moved(self, name: str) -> bool:
        """Whether the metric had at least two numbers: at two times, or with two labels."""
        return (
            len(set().union(*(values for (of, _), values in self.seen.items() if of == name))) > 1
        )

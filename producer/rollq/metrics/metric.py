"""A metric as a value: what a page of Prometheus's says of one, and what is read for it.

The invariant: a label has few values, of a fixed list or a bounded number of them. Names of runs
are bounded by their number; jobs, tasks, texts and addresses are never labels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    COUNTER = "counter"
    """A total that only grows. Its name ends with `_total`."""
    GAUGE = "gauge"
    """The current values."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    says: str
    """One sentence for people; it names the unit."""
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One number of a metric."""

    metric: Metric
    labels: tuple[str, ...]
    """A value for each label of the metric."""
    value: float


def counter(name: str, says: str, *labels: str) -> Metric:
    return Metric(f"{name}_total", Kind.COUNTER, says, labels)


def gauge(name: str, says: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, says, labels)


def spread(
    metric: Metric,
    values: Mapping[str, float],
    names: Iterable[str] = (),
    before: tuple[str, ...] = (),
) -> list[Sample]:
    """A sample for each of the values; the last label is its name. Those of `names` are there from
    the start, as 0, because a rate needs two numbers.
    """
    all_values = dict.fromkeys(names, 0.0) | dict(values)
    return [Sample(metric, (*before, name), value) for name, value in all_values.items()]

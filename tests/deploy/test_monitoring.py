"""The dashboard and the alerts, against the metrics that the code has."""

import re

import pytest
import yaml

from rollq.metrics.metric import Kind
from rollq.metrics.of_runs import LEDGER_METRICS
from rollq_worker.process.monitoring.metrics import WORKER_METRICS
from tests.deploy.monitoring import FOLDER, PANELS, RULES, expressions, grouped_by, selectors

pytestmark = pytest.mark.packages

METRICS = {metric.name: metric for metric in (*LEDGER_METRICS, *WORKER_METRICS)}
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to every metric."""
OTHERS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
GROWING = re.compile(r"\b(?:rate|increase)\((\w+)")


@pytest.mark.parametrize("expression", expressions().values(), ids=expressions())
def test_an_expression_names_metrics_and_labels_that_there_are(expression: str) -> None:
    labels = set[str]()
    for name, matchers in selectors(expression):
        assert name in METRICS.keys() | OTHERS
        known = set(METRICS[name].labels) if name in METRICS else set()
        assert matchers.keys() <= known | OF_PROMETHEUS
        labels |= known
    assert grouped_by(expression) <= labels | OF_PROMETHEUS
    for name in GROWING.findall(expression):
        assert name not in METRICS or METRICS[name].kind is Kind.COUNTER


def test_metrics_follow_the_conventions_of_prometheus() -> None:
    assert len(METRICS) == len(LEDGER_METRICS) + len(WORKER_METRICS)
    for metric in METRICS.values():
        assert re.fullmatch(r"rollq_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
        assert metric.says.endswith(".")
        assert set(metric.labels) <= {
            "run",
            "class",
            "state",
            "stop",
            "waiting_for",
            "then",
            "why",
            "finish",
        }


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "remedy"}
        known = {
            label
            for name, _ in selectors(rule["expr"])
            if name in METRICS
            for label in METRICS[name].labels
        }
        used = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
        assert set(used) <= known | OF_PROMETHEUS


def test_the_alert_of_a_full_redis_shows_what_it_uses() -> None:
    """Of `x and y`, the value is x."""
    (full,) = (rule for rule in RULES if rule["alert"] == "RollqRedisFull")
    assert next(name for name, _ in selectors(full["expr"])) == "rollq_redis_memory_bytes"
    assert "Redis uses {{ $value" in full["annotations"]["summary"]


def test_panels_and_their_expressions_have_names_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        if panel["type"] != "row":
            references = [target["refId"] for target in panel["targets"]]
            assert len(set(references)) == len(references) > 0


def test_prometheus_and_grafana_find_what_the_files_name() -> None:
    prometheus = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert [job["job_name"] for job in prometheus["scrape_configs"]] == [
        "rollq-ledger",
        "rollq-worker",
    ]
    assert [rule.rpartition("/")[2] for rule in prometheus["rule_files"]] == ["alerts.yml"]
    jobs = {
        matchers["job"]
        for e in expressions().values()
        for _, matchers in selectors(e)
        if "job" in matchers
    }
    assert jobs <= {"rollq-ledger", "rollq-worker"}
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasource.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yml").read_text())["providers"]
    assert provider["type"] == "file"

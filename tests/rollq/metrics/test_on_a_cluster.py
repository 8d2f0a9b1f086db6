"""Metrics of runs that lie on several servers."""

from pathlib import Path

from rollq.ledger.ledger import Ledger
from rollq.metrics.of_runs import RunMetrics
from rollq.servers.connection import connect
from tests.rollq.samples import group
from tests.servers import Cluster


def test_runs_on_several_servers_are_on_one_page(tmp_path: Path) -> None:
    cluster, names = Cluster(tmp_path), {"r1", "r2", "r3", "r4", "r5"}
    client = connect(cluster.url)
    for run in names:
        Ledger(client, run).submit(group(run=run))
    samples = RunMetrics(client).read()
    queued = {sample.labels[0]: sample.value for sample in samples if sample.metric.name == "rollq_jobs_queued"}
    assert queued == dict.fromkeys(names, 2)
    client.close()
    cluster.close()

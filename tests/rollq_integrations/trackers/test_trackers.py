"""The real packages wandb, mlflow and trackio, on this machine alone (make test-trackers)."""

import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from rollq import Client, Job
from rollq.ledger.ledger import Ledger
from tests.conftest import free_port
from tests.rollq.groups import finish_groups, play_when_submitted
from tests.rollq.samples import reader

pytestmark = pytest.mark.filterwarnings("default")  # theirs
TRAINER = """
import sys
from rollq import Client

with Client(run="r") as client:
    for batch in client.batches(1, name="trainer", track=sys.argv[1]):
        batch.ack()
        if batch.step == int(sys.argv[2]):
            break
"""
TEXT = "It is red."
"""What a rollout's text has."""


@pytest.fixture
def run(ledger: Ledger, redis_url: str, tmp_path: Path) -> Any:
    """Runs a program in an empty folder, where the trackers keep what they are told; stdout is what
    it returns.
    """
    finish_groups(ledger, *"abcd", seal=True)

    def start(*line: str, **variables: str) -> str:
        env = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))
            },
            "HOME": str(tmp_path),
            "ROLLQ_REDIS_URL": redis_url,
            "WANDB_MODE": "offline",
            "HF_HUB_OFFLINE": "1",
            "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
            "TRACKIO_DIR": str(tmp_path / "trackio"),
            **variables,
        }
        ended = subprocess.run(
            [sys.executable, *line],
            cwd=tmp_path,
            env=env,
            text=True,
            capture_output=True,
            timeout=150,
        )
        assert ended.returncode == 0, ended.stderr
        start.err = ended.stderr  # type: ignore[attr-defined]
        return ended.stdout

    return start


def train(run: Any, track: str, until: int, **variables: str) -> str:
    return str(run("-c", TRAINER, track, str(until), **variables))


EVALUATOR = """
import sys
from rollq import Client, Job

with Client(run="e") as client:
    client.evaluate([Job(env="shop", task=0)], 1, "7", track=sys.argv[1]).result(60)
"""


def test_each_takes_the_result_of_an_evaluation(
    run: Any, ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    of_run = Ledger(ledger.redis, "e")
    with Client(redis_url, run="e") as client:
        evaluation = client.evaluate([Job(env="shop", task=0)], 1, "7")
        play_when_submitted(of_run, {"eval.7.shop.train.0": [1.0]}, "7")
        evaluation.result(60)
    for name in ("wandb", "mlflow", "trackio"):
        run("-c", EVALUATOR, f"{name}:shop")
        assert "did not take" not in run.err
    [file] = tmp_path.glob(f"wandb/offline-run-*/run-{run_id(of_run)}.wandb")
    assert b"rollq/eval/shop/train/reward_mean" in file.read_bytes()
    assert history(f"sqlite:///{tmp_path}/mlflow.db", "rollq/eval/shop/train/reward_mean") == [
        (7, 1.0)
    ]
    with closing(sqlite3.connect(tmp_path / "trackio" / "shop.db")) as database:
        [(step, metrics)] = database.execute("select step, metrics from metrics").fetchall()
    assert (step, json.loads(metrics)["rollq/eval/shop/train/pass_hat_1"]) == (7, 1.0)


def run_id(ledger: Ledger) -> str:
    return f"{ledger.run}-{int(reader(ledger).began())}"


def test_wandb_goes_on_with_its_run_and_keeps_the_machine_to_itself(
    run: Any, ledger: Ledger, tmp_path: Path
) -> None:
    train(run, "wandb:shop:1", 1)
    train(run, "wandb:shop", 3)
    files = sorted(tmp_path.glob(f"wandb/offline-run-*/run-{run_id(ledger)}.wandb"))
    assert len(files) == 2  # `wandb sync` makes one run of them
    first, second = (file.read_bytes() for file in files)
    assert b"rollq/reward_mean" in first and b"rollq/pass_rate" in second
    tables = [
        table.read_text() for table in tmp_path.glob("wandb/offline-run-*/files/media/**/*.json")
    ]
    assert len(tables) == 2 and all(TEXT in table for table in tables)  # of the first process alone
    kept = {file.name for file in tmp_path.glob("wandb/offline-run-*/files/*") if file.is_file()}
    assert kept == set()
    for private in (platform.platform(), "wandb:shop"):
        assert private.encode() not in first + second


def history(database: str, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(database)
    [experiment] = [found for found in client.search_experiments() if found.name == "shop"]
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert {tag for tag in found.data.tags if not tag.startswith("mlflow.")} == {"rollq.run"}
    return [
        (point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)
    ]


def test_mlflow_goes_on_with_its_run_in_a_file(run: Any, tmp_path: Path) -> None:
    train(run, "mlflow:shop:1", 1)
    train(run, "mlflow:shop", 3)
    assert history(f"sqlite:///{tmp_path}/mlflow.db", "rollq/reward_mean") == [
        (step, 1.0) for step in range(4)
    ]
    tables = {file.name: file.read_text() for file in tmp_path.glob("mlruns/**/rollouts/*.json")}
    assert {*tables} == {"0.json", "1.json"} and all(TEXT in table for table in tables.values())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A local MLflow server."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    line = [
        "-m",
        "mlflow",
        "server",
        "--workers",
        "1",
        "--port",
        str(port),
        "--backend-store-uri",
        "sqlite:///of_server.db",
    ]
    env = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with open(tmp_path / "server.log", "wb") as out:
        process = subprocess.Popen(
            [sys.executable, *line],
            cwd=tmp_path,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            break
        time.sleep(0.3)
    yield url
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_mlflow_on_a_server(run: Any, server: str) -> None:
    train(run, "mlflow:shop", 3, MLFLOW_TRACKING_URI=server)
    assert [step for step, _ in history(server, "rollq/turns_mean")] == [0, 1, 2, 3]


def test_a_server_that_is_away_costs_the_numbers_and_no_batch(run: Any, ledger: Ledger) -> None:
    train(
        run,
        "mlflow:shop",
        3,
        MLFLOW_TRACKING_URI="http://127.0.0.1:1",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )
    assert "mlflow:shop did not take step 3" in run.err
    assert reader(ledger).stats()["groups_acked"] == 4


def test_trackio_goes_on_with_its_run(run: Any, ledger: Ledger, tmp_path: Path) -> None:
    train(run, "trackio:shop:1", 1)
    train(run, "trackio:shop", 3)
    with closing(sqlite3.connect(tmp_path / "trackio" / "shop.db")) as database:
        rows = database.execute(
            "select run_name, step, metrics from metrics order by step"
        ).fetchall()
    assert [(name, step) for name, step, _ in rows] == [(run_id(ledger), step) for step in range(4)]
    assert [TEXT.encode() in bytes(metrics) for _, _, metrics in rows] == [True, True, False, False]
    assert json.loads(rows[0][2])["rollq/reward_mean"] == 1.0


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_pull_keeps_its_stdout(run: Any, name: str) -> None:
    line = [
        "--run",
        "r",
        "--groups",
        "4",
        "--out",
        "x.jsonl",
        "--track",
        f"{name}:shop:2",
        "--json",
    ]
    found: Mapping[str, Any] = json.loads(run("-m", "rollq", "pull", *line))
    assert found["delivered"] == 8
    assert f"{name}:shop:2 did not take" not in run.err

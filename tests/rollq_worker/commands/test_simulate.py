"""`rollq simulate`: a small fleet from file to tables, JSON, comparison, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq_worker.simulation.costs.table import Costs, as_toml, read_costs

FLEET = """
[engines]
count = 2
turn_s = { mean = 0.5, p99 = 1.5 }
[workers]
processes = 2
concurrency = 8
[jobs]
turns = 4
prompt_tokens = 300
sampled_tokens = 20
observed_tokens = 30
environment_s = { mean = 0.3, p99 = 1.0 }
group_size = 4
[trainer]
groups = 2
step_s = 1
update_s = 0.2
max_staleness = 1
"""


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return str(path)


def report(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert cli.main(["simulate", "--json", *args]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_fleet_is_played_beside_a_real_ledger(fleet: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["simulate", fleet]) == 0
    out, err = capsys.readouterr()
    assert "calls and" in err and "batches as simulated" in err
    for name in ("goodput", "engines idle", "batch wait", "staleness", "worker cores to plan", "Redis CPU"):
        assert f"| {name} | " in out
    assert [line.split(" | ")[0] for line in out.splitlines() if ",000 |" in line] == [
        "| 10,000",
        "| 100,000",
        "| 1,000,000",
    ]
    assert out.splitlines()[-1].startswith("next: compare fleets: rollq simulate")


def test_the_json_has_what_the_tables_have(fleet: str, capsys: pytest.CaptureFixture[str]):
    found = report(capsys, fleet)
    assert found["ledger"]["rollouts"] >= 32 and found["ledger"]["factor"] > 0
    assert found["outcome"]["slots"] == 16 and found["outcome"]["rollouts_a_s"] > 0
    assert set(found["outcome"]["staleness"]) <= {"0", "1"}
    assert [limit["rollouts"] for limit in found["limits"][1:]] == [10_000, 100_000, 1_000_000]


def test_calls_that_are_cheaper_in_a_fleet_are_compared_as_calls_alone(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    measured = read_costs()
    cheaper = replace(measured, redis=replace(measured.redis.times(0.5), alone=2.0))
    expected = []
    for costs in (measured, cheaper):
        (tmp_path / "costs.toml").write_text(as_toml(costs))
        expected.append(report(capsys, fleet, "--costs", str(tmp_path / "costs.toml"))["ledger"]["table_cpu_s"])
    assert expected[0] == pytest.approx(expected[1]) and expected[0] > 0


def test_a_seed_is_a_run(fleet: str, capsys: pytest.CaptureFixture[str]):
    outcomes = [report(capsys, fleet, "--no-ledger", "--seed", seed)["outcome"] for seed in ("1", "1", "2")]
    assert outcomes[0] == outcomes[1] != outcomes[2]


def test_fleets_are_compared(fleet: str, capsys: pytest.CaptureFixture[str]):
    found = report(capsys, fleet, "--no-ledger", "--vary", "workers.concurrency=2,8")
    slots = [run["outcome"]["slots"] for run in found["runs"]]
    assert slots == [4, 16] and found["key"] == "workers.concurrency"
    assert cli.main(["simulate", fleet, "--no-ledger", "--vary", "workers.concurrency=2,8"]) == 0
    assert [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["| 2", "| 8"]


def test_a_fleet_is_scaled_and_costs_are_chosen(fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "free.toml").write_text(as_toml(Costs()))
    args = ["--no-ledger", "--rollouts", "32", "--costs", str(tmp_path / "free.toml")]
    found = report(capsys, fleet, *args)["outcome"]
    assert found["slots"] == 32 and found["worker_cores"] == found["redis_busy"] == 0


def test_the_example_can_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["simulate", "--example"]) == 0
    (tmp_path / "fleet.toml").write_text(capsys.readouterr().out)
    assert report(capsys, str(tmp_path / "fleet.toml"), "--no-ledger", "--rollouts", "64")["outcome"]["slots"] == 128


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "name the fleet's file, or write one: rollq simulate --example > fleet.toml"),
        (["none.toml"], "none.toml cannot be read: No such file or directory"),
        (["FLEET", "--vary", "concurrency=1"], "expected TABLE.KEY=A,B as in workers.concurrency=64,128"),
        (["FLEET", "--vary", "workers.concurrency="], "expected TABLE.KEY=A,B"),
        (["FLEET", "--vary", "workers.concurency=1"], "'concurency' is not a key; did you mean concurrency?"),
        (["FLEET", "--costs", "none.toml"], "none.toml cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line(line: list[str], message: str, fleet: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["simulate", "--no-ledger", *(fleet if word == "FLEET" else word for word in line)]) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert message in err[-1] and err[-1].startswith("rollq: ")


def test_without_a_redis_server_the_table_decides(
    fleet: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from rollq.errors import SettingsError
    from rollq.processes import embedded_redis

    def missing() -> str:
        raise SettingsError("no Redis server found")

    monkeypatch.setattr(embedded_redis, "binary", missing)
    assert cli.main(["simulate", fleet]) == 0
    assert "no Redis server on this machine" in capsys.readouterr().err

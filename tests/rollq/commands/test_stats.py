"""`rollq stats`: the counts of a run, and the list of runs."""

import json

import pytest

from rollq import Client, Job, cli
from rollq.client.client import internals
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT


def test_an_unknown_run_is_an_error_that_names_the_latest_runs(
    redis_url: str, fails: Fails, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("stats", "--run", "nosuch", "--redis", redis_url)
    assert f"no run 'nosuch' at {redis_url}; there are no runs yet" in fails(*line)
    for n in range(7):
        assert cli.main([*SUBMIT, "--run", f"r{n}", "--redis", redis_url]) == 0
    capsys.readouterr()
    for more in ((), ("--json",)):
        said = fails(*line, *more)
        assert "; runs there: r6, r5, r4, r3, r2 and 2 more (rollq stats lists them)\n" in said
    with Client(redis_url, run="sealed") as client:  # nothing was ever submitted to it
        client.seal()
    assert cli.main(["stats", "--run", "sealed", "--redis", redis_url]) == 0


def test_a_redis_without_runs(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stats", "--redis", redis_url]) == 0
    assert "no runs yet" in capsys.readouterr().out
    assert cli.main(["stats", "--redis", redis_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_a_run_that_cannot_be_read_hides_no_other(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("broken", "good"):
        with Client(redis_url, run=name) as client:
            client.submit([Job(env="shop", task=0)])
    with Client(redis_url, run="broken") as client:
        internals(client).ledger.redis.delete(internals(client).ledger.keys.queued)
        internals(client).ledger.redis.set(internals(client).ledger.keys.queued, "garbage")
    capsys.readouterr()
    for more in ((), ("--json",)):
        assert cli.main(["stats", "--redis", redis_url, *more]) == 1
        said = capsys.readouterr()
        assert "good" in said.out and "broken" not in said.out
        assert said.err.startswith("rollq: run broken: snapshot: rollq:{broken}:queued is a string")
        assert "rollq jobs drop RUN --whole-run --yes" in said.err

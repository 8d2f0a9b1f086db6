"""`rollq stats`: the counts of a run, and the list of runs."""

from rollq import Client, Job
from rollq.ledger.keys import Keys
from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Says
from tests.rollq.commands.lines import SUBMIT


def test_an_unknown_run_is_an_error_that_names_the_latest_runs(redis_url: str, says: Says) -> None:
    line = ("stats", "--run", "nosuch")
    assert f"no run 'nosuch' at {redis_url}; there are no runs yet" in says(*line, code=2).err
    for n in range(7):
        says(*SUBMIT, "--run", f"r{n}")
    for more in ((), ("--json",)):
        said = says(*line, *more, code=2).err
        assert "; runs there: r6, r5, r4, r3, r2 and 2 more (rollq stats lists them)\n" in said
    with Client(redis_url, run="sealed") as client:  # nothing was ever submitted to it
        client.seal()
    says("stats", "--run", "sealed")


def test_a_redis_without_runs(says: Says) -> None:
    assert "no runs yet" in says("stats").out
    assert says("stats", "--json").json == {}


def test_a_run_that_cannot_be_read_hides_no_other(
    redis_url: str, ledger: Ledger, says: Says
) -> None:
    for name in ("broken", "good"):
        with Client(redis_url, run=name) as client:
            client.submit([Job(env="shop", task=0)])
    ledger.redis.delete(Keys("broken").queued)
    ledger.redis.set(Keys("broken").queued, "garbage")
    for more in ((), ("--json",)):
        said = says("stats", *more, code=1)
        assert "good" in said.out and "broken" not in said.out
        assert said.err.startswith("rollq: run broken: snapshot: rollq:{broken}:queued is a string")
        assert "rollq jobs drop RUN --whole-run --yes" in said.err

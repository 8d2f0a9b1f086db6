"""The table of costs: what is written is read again, and the shipped one is whole."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import SettingsError
from rollq_worker.simulation.costs.real_ledger import MadeUp, RealLedger
from rollq_worker.simulation.costs.table import Costs, RedisCosts, WorkerCosts, as_toml, read_costs

SECONDS = st.floats(0, 1e3).map(lambda value: float(f"{value:.4g}"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs")


@given(
    turn=SECONDS,
    claim=SECONDS,
    growth=st.dictionaries(st.sampled_from(["submit", "claim"]), SECONDS),
    cpu=st.text(max_size=20),
)
def test_what_is_written_is_read_again(turn: float, claim: float, growth: dict[str, float], cpu: str, folder: Path):
    printable = "".join(letter for letter in cpu if letter.isprintable() and letter not in '"\\')
    costs = Costs(
        worker=WorkerCosts(turn_s=turn),
        redis=RedisCosts(claim_s=claim, growth=growth),
        machine={"cpu": printable, "cores": 2, "load": 0.5},
    )
    path = folder / "costs.toml"
    path.write_text(as_toml(costs))
    assert read_costs(path) == costs


def test_the_shipped_table_has_every_cost():
    costs = read_costs()
    assert costs.worker.turn_s > 0 and costs.redis.append_s > 0 and costs.clients.publish_s > 0
    assert costs.machine["cpu"] and costs.machine["redis"]


def test_a_table_that_lacks_a_cost_is_an_error(tmp_path: Path):
    text = as_toml(Costs())
    (tmp_path / "costs.toml").write_text(text.replace("claim_s", "clam_s"))
    with pytest.raises(SettingsError, match=r"costs.toml: \[redis\]: claim_s is missing"):
        read_costs(tmp_path / "costs.toml")


def test_a_factor_makes_every_call_as_expensive_and_no_byte():
    redis = read_costs().redis
    twice = redis.times(2.0)
    assert twice.append_s == 2 * redis.append_s and twice.token_bytes == redis.token_bytes


def test_made_up_episodes_are_played_by_the_ledger(redis_url: str):
    ledger, made_up = RealLedger(redis_url, "made-up", 1, 8), MadeUp()
    assert ledger.submit(1)
    ledger.claim(1, 0)
    ledger.append(1, 0, [*made_up.opening(30), *made_up.turn(0, 5, 7)])
    ledger.renew()
    ledger.complete(1, 0, [*made_up.turn(1, 5, 0), made_up.end()], 2, 47)
    assert ledger.take(1) == [(1, 0)]
    ledger.read([1])
    ledger.acknowledge()
    ledger.close()

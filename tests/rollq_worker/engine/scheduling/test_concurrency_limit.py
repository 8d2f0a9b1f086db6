"""The limit of one engine: its bounds, what lowers and raises it, and fair shares."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq_worker.engine.scheduling.concurrency_limit import PATIENCE, ConcurrencyLimit
from rollq_worker.engine.scheduling.engine_load import EngineLoad, read_load


def load(running: int = 10, waiting: int = 0, token_usage: float = 0.5, retracted: int = 0) -> EngineLoad:
    return EngineLoad(running=running, waiting=waiting, token_usage=token_usage, retracted=retracted)


IDLE, QUEUE = load(), load(waiting=10)
LOADS = st.builds(load, st.integers(0, 300), st.integers(0, 300), st.floats(0, 1), st.integers(0, 5))


@given(st.integers(1, 300), st.lists(st.tuples(LOADS, st.integers(0, 300))))
def test_it_stays_between_one_and_the_ceiling(ceiling: int, looks: list[tuple[EngineLoad, int]]) -> None:
    limit = ConcurrencyLimit(ceiling)
    for seen, held in looks:
        before = limit.value
        limit.observe(seen, held=held)
        assert 1 <= limit.value <= ceiling
        assert limit.value <= before or held == before


@pytest.mark.parametrize("seen", [QUEUE, load(token_usage=0.98), load(retracted=1)])
def test_an_engine_that_has_too_much_gets_less(seen: EngineLoad) -> None:
    limit = ConcurrencyLimit(64)
    limit.observe(seen, held=50)
    assert limit.value == 40


def test_a_decrease_is_left_to_work_before_the_next() -> None:
    limit = ConcurrencyLimit(64)
    for _ in range(10):
        limit.observe(QUEUE, held=64)
    assert limit.value == 51  # the episodes above the limit are still there
    for _ in range(PATIENCE):
        limit.observe(QUEUE, held=51)
    assert limit.value == 51
    limit.observe(QUEUE, held=51)
    assert limit.value == 40


def test_it_grows_only_when_it_is_reached() -> None:
    limit = ConcurrencyLimit(64)
    limit.observe(QUEUE, held=5)
    for _ in range(10):
        limit.observe(IDLE, held=3)
    assert limit.value == 4
    for _ in range(100):
        limit.observe(IDLE, held=limit.value)
    assert limit.value == 64


def test_a_pause_for_new_weights_is_no_overload() -> None:
    limit = ConcurrencyLimit(64)
    limit.observe(load(running=0, waiting=64, retracted=64), held=64)
    assert limit.value == 64


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=2, max_size=6), st.integers(30, 200), st.integers(0, 1000))
def test_workers_that_share_an_engine_come_to_equal_shares(starts: list[int], capacity: int, seed: int) -> None:
    dice = random.Random(seed)
    workers = [ConcurrencyLimit(64) for _ in starts]
    for limit, start in zip(workers, starts, strict=True):
        limit.observe(QUEUE, held=start)
    shares: list[list[int]] = []
    for _ in range(300):
        for limit in dice.sample(workers, len(workers)):
            total = sum(one.value for one in workers)
            seen = load(running=min(total, capacity), waiting=max(0, total - capacity))
            limit.observe(seen, held=limit.value)
        shares.append([limit.value for limit in workers])
    late = shares[100:]
    means = [sum(row[i] for row in late) / len(late) for i in range(len(workers))]
    fairness = sum(means) ** 2 / (len(means) * sum(mean**2 for mean in means))  # Jain's index: 1 for equal shares
    assert fairness > 0.85, means
    assert 0.6 * min(capacity, 64 * len(workers)) < sum(means) < 1.4 * capacity, means


RANK = {"num_running_reqs": 3, "num_waiting_reqs": 2, "token_usage": 0.25}


def test_the_loads_of_all_ranks_are_read() -> None:
    full = RANK | {"token_usage": 0.75, "queues": {"waiting": 2, "retracted": 1}}
    assert read_load({"loads": [RANK, full]}) == EngineLoad(running=6, waiting=4, token_usage=0.75, retracted=1)


@pytest.mark.parametrize(
    "reply",
    [
        *(None, [], {}, {"loads": []}, {"loads": [{}]}, {"loads": ["x"]}),
        *({"loads": [RANK | {"token_usage": usage}]} for usage in ("?", float("nan"), float("inf"), -1.0)),
        {"loads": [RANK | {"num_running_reqs": float("inf")}]},
    ],
)
def test_what_cannot_be_read_is_no_load(reply: object) -> None:
    assert read_load(reply) is None

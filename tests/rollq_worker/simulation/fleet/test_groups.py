"""The rules for groups, played in any order beside the ledger's own scripts on a real Redis."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollq_worker.simulation.costs.real_ledger import MadeUp, RealLedger
from rollq_worker.simulation.fleet.groups import Group, Groups

SIZE, AHEAD, BATCH = 2, 4, 2
STEPS = st.lists(st.tuples(st.sampled_from(["submit", "claim", "end", "take", "acknowledge"]), st.integers(0, 9)),
                 max_size=60)  # fmt: skip
made_up = MadeUp()
ENTRIES = [*made_up.opening(4), *made_up.turn(0, 3, 0), made_up.end()]


@pytest.fixture(scope="module")
def numbers() -> dict[str, int]:
    return {"run": 0}


@pytest.mark.parametrize("staleness", [None, 0, 1])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_groups_enter_and_leave_as_in_the_ledger(
    steps: list[tuple[str, int]], staleness: int | None, redis_url: str, numbers: dict[str, int]
):
    numbers["run"] += 1
    real = RealLedger(redis_url, f"rules-{staleness}-{numbers['run']}", SIZE, AHEAD, BATCH, staleness)
    rules = Groups(SIZE, AHEAD, BATCH, staleness)
    queued: list[tuple[Group, int]] = []
    playing: list[tuple[Group, int]] = []
    held: list[Group] = []
    for step, which in steps:
        if step == "submit":
            assert real.submit(rules.entered + 1) == rules.room
            if rules.room:
                group = rules.enter()
                queued += [(group, sample) for sample in range(SIZE)]
        elif step == "claim" and queued:
            group, sample = queued.pop(which % len(queued))
            real.claim(group.seq, sample)
            rules.begin(group)
            playing.append((group, sample))
        elif step == "end" and playing:
            group, sample = playing.pop(which % len(playing))
            real.complete(group.seq, sample, ENTRIES, 1, 7)
            rules.end(group)
        elif step == "take" and not held:
            held = rules.take(BATCH)
            assert real.take(BATCH) == [(group.seq, group.started) for group in held]
        elif step == "acknowledge" and held:
            real.publish()
            rules.publish()
            real.acknowledge()
            rules.acknowledge(held)
            held = []
    real.close()


def test_no_batch_while_too_few_groups_are_finished():
    rules = Groups(1, 8, 2, None)
    first, second = rules.enter(), rules.enter()
    assert rules.end(first) and rules.take(2) == []
    assert rules.end(second) and rules.take(2) == [first, second]


def test_on_policy_groups_leave_in_the_order_of_submission():
    rules = Groups(1, 8, 1, 1)
    first, second = rules.enter(), rules.enter()
    assert not rules.room  # two batches: one for this step, one for the next
    rules.end(second)
    assert rules.take(1) == []
    rules.end(first)
    assert rules.take(1) == [first]
    rules.publish()
    assert rules.room

"""The mistakes of an imperfect policy."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.env import RESPOND, Task
from rollq_worker.replay_engine.policy.mistakes import (
    Mistake,
    chance_per_turn,
    draw_mistake,
    last_call,
    spoiled_move,
)
from tests.rollq_worker.replay_engine.shop_episodes import SHOP, SPLIT


def test_each_kind_differs_from_the_move(task: Task) -> None:
    made = last_call(task)
    said = {kind: spoiled_move(kind, task, made) for kind in Mistake}
    assert None not in said.values()
    assert task.moves[made] not in said.values()
    assert said[Mistake.ARGUMENT].name == task.moves[made].name
    assert said[Mistake.FINISH] == task.moves[-1]


def test_nothing_goes_wrong_after_the_last_call(task: Task) -> None:
    for made in range(last_call(task) + 1, len(task.moves)):
        assert draw_mistake(random.Random(0), task, made) is None


def test_half_of_them_are_fatal(task: Task) -> None:
    rng = random.Random(0)
    made = next(index for index, move in enumerate(task.moves) if move.name != RESPOND)
    assert made < last_call(task)
    drawn = Counter(str(draw_mistake(rng, task, made)) == str(task.moves[-1]) for _ in range(400))
    assert 150 < drawn[True] < 250


@given(rate=st.floats(0, 1))
def test_the_chance_adds_up_over_the_turns(rate: float) -> None:
    task = SHOP.task(SPLIT, 0)
    assert 1 - (1 - chance_per_turn(rate, task)) ** (last_call(task) + 1) == pytest.approx(
        rate, abs=1e-9
    )

"""What a warm start is taught from: all forms, and a reward that leaves something to learn."""

import random
from statistics import fmean

import pytest

from examples.learn_shop.demonstrations import CALLS, MISTAKEN, demonstration
from rollq.env import RESPOND
from rollq_worker.environments import domain
from rollq_worker.environments.shop.desk import KINDS
from rollq_worker.tokens.tokenizer import Tokenizer
from tests.rollq_worker.environments.episodes import play


@pytest.mark.parametrize("env", ["shop", "shop:desk"])
def test_some_demonstrations_earn_the_reward(tokenizer: Tokenizer, env: str) -> None:
    episodes = [demonstration(env, tokenizer, random.Random(seed)) for seed in range(100)]
    assert 0.15 < fmean(episode.reward for episode in episodes) < 0.45
    assert all(len(episode.segments()) == 1 and episode.sampled_tokens > 0 for episode in episodes)
    assert len({episode.job.task for episode in episodes}) > 80


def test_the_clerks_mistakes_are_calls_and_earn_nothing() -> None:
    desk = domain("shop:desk")
    for kind in range(KINDS):
        mistaken = desk.task("dev", (kind + MISTAKEN) % CALLS).moves
        assert mistaken[0].name != RESPOND
        assert play(desk, "dev", kind, mistaken)[0].reward == 0.0


def test_the_same_random_numbers_give_the_same_episode(tokenizer: Tokenizer) -> None:
    first, second = (demonstration("shop", tokenizer, random.Random(7)) for _ in range(2))
    assert list(first.tokens) == list(second.tokens)

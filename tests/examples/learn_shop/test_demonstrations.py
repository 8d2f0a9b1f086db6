"""What a warm start is taught from: all forms, and a reward that leaves something to learn."""

import random
from statistics import fmean

import pytest

from examples.learn_shop.demonstrations import demonstration
from rollq_worker.tokens.tokenizer import Tokenizer


@pytest.mark.parametrize("env", ["shop", "shop:desk"])
def test_some_demonstrations_earn_the_reward(tokenizer: Tokenizer, env: str) -> None:
    episodes = [demonstration(env, tokenizer, random.Random(seed)) for seed in range(100)]
    assert 0.15 < fmean(episode.reward for episode in episodes) < 0.45
    assert all(len(episode.segments()) == 1 and episode.sampled_tokens > 0 for episode in episodes)
    assert len({episode.job.task for episode in episodes}) > 80


def test_the_same_random_numbers_give_the_same_episode(tokenizer: Tokenizer) -> None:
    first, second = (demonstration("shop", tokenizer, random.Random(7)) for _ in range(2))
    assert list(first.tokens) == list(second.tokens)

"""The README's trainer snippet runs as printed, but for the address."""

import re
from pathlib import Path

import pytest

from tests.e2e.stack import Stack

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.promise
def test_the_trainer_snippet_runs(stack: Stack):
    [snippet] = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    address = "redis://127.0.0.1:6379/0"
    assert address in snippet
    stack.engine("--mistakes", "0.3")
    stack.worker(16)
    trained = []
    names = {"train": lambda *args: trained.append(args)}
    exec(snippet.replace(address, stack.redis_url), names)
    exec(snippet.replace(address, stack.redis_url), names)  # a repeat ends with the run
    assert sum(len(tokens) for tokens, *_ in trained) == 128
    assert all(
        tokens.shape == mask.shape == logprobs.shape for tokens, mask, logprobs, _ in trained
    )
    assert all(
        mask.any(axis=1).all() and len(advantages) == len(mask)
        for _, mask, _, advantages in trained
    )
    assert stack.stats("shop-grpo")["delivered"] == 128

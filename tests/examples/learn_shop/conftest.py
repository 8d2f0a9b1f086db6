"""A tiny policy with random weights, and the example's sampler as a process that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from examples.learn_shop import policy
from examples.learn_shop.engines import engine
from examples.learn_shop.train import Options
from rollq_worker.engine.client import EngineClient
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer

transformers.logging.disable_progress_bar()
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer()


@pytest.fixture(scope="session")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folders of two policies."""
    root = tmp_path_factory.mktemp("policies")
    return [policy.save(policy.make(tokenizer, seed), root / str(seed)) for seed in (0, 1)]


@pytest.fixture(scope="module")
def url(models: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A sampler that serves the first policy as version 0."""
    folder: Path = tmp_path_factory.mktemp("engine")
    with engine(models[0], folder, None, Options()) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[EngineClient]:
    engine = EngineClient(url)
    yield engine
    engine.close()

"""Domains of customer-service conversations, and a pause of the garbage collector."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollq.env.customer_service import ConversationDomain
from rollq_integrations.tau import tau_bench
from rollq_worker.environments import domain
from tests.packages import imported_anew, write
from tests.rollq_integrations.tau.fake_tau_bench import FILES
from tests.rollq_integrations.tau.original_tau2_2025 import OriginalTau2


@pytest.fixture
def fake_tau_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConversationDomain]:
    """The fake package on the path."""
    write(tmp_path / "tau_bench", FILES)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with imported_anew("tau_bench"):
        monkeypatch.syspath_prepend(tmp_path)
        yield tau_bench.load("airline")


@pytest.fixture(params=["shop", "tau2_2025:retail", "the fake tau_bench"])
def any_domain(request: pytest.FixtureRequest) -> ConversationDomain:
    if request.param in ("shop", "tau2_2025:retail"):
        return domain(request.param)
    return request.getfixturevalue("fake_tau_bench")


@pytest.fixture(scope="module", params=["retail", "airline"])
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tau2_domain(variant: str) -> ConversationDomain:
    return domain(f"tau2_2025:{variant}")


@pytest.fixture(scope="module")
def original(variant: str, tau2_domain: ConversationDomain) -> OriginalTau2:
    return OriginalTau2(variant)


@pytest.fixture(scope="module")
def no_garbage_collection() -> Iterator[None]:
    """The packages' own way makes a hundred thousand objects an episode, none in a cycle, which
    take long to walk.
    """
    gc.disable()
    yield
    gc.enable()

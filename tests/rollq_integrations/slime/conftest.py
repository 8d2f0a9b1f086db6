"""slime as rollq's data source finds it: a server and classes, recorded ones or its own where its
source is.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollq_integrations.slime import DataSource, generate_rollout
from tests.rollq.weights.fake_engines import FakeEngine, serving
from tests.rollq_integrations.slime.slime_packages import STAND_IN, arguments, own_slime, slime_at

Make = Callable[..., DataSource]


@pytest.fixture(params=["recorded", "own"])
def slime(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which of the two `import slime` finds."""
    folder = STAND_IN if request.param == "recorded" else own_slime()
    if folder is None:
        pytest.skip("no slime: ROLLQ_TEST_SLIME names a folder with its source")
    with slime_at(folder):
        yield request.param


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    """slime's router and its only engine, which serves slime's first version."""
    engine = FakeEngine()
    engine.version = "1"
    with serving(engine), slime_at(STAND_IN):
        engine.answers["/workers"] = (200, {"workers": [{"url": engine.url}]})
        yield engine


@pytest.fixture
def source(engine: FakeEngine, redis_url: str) -> Iterator[Make]:
    """Makes slime's data source for these arguments, begun after the checkpoint `after`."""
    made: list[DataSource] = []

    def make(after: int = -1, **changes: Any) -> DataSource:
        host, port = engine.url.removeprefix("http://").split(":")
        args = arguments(
            rollq_redis_url=redis_url, sglang_router_ip=host, sglang_router_port=port, **changes
        )
        made.append(DataSource(args))
        made[-1].load(after)
        return made[-1]

    yield make
    for one in made:
        one.client.close()


def rollout(source: DataSource, rollout_id: int) -> Any:
    return generate_rollout(source.args, rollout_id, source)


def jobs(output: Any) -> list[list[str]]:
    return [[sample.metadata["job"] for sample in group] for group in output.samples]


def members(*groups: str) -> list[list[str]]:
    return [[f"r/{group}/0", f"r/{group}/1"] for group in groups]

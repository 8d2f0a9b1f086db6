"""The shop's tasks, and a replay engine that plays them."""

from collections.abc import Iterator

import pytest

from rollq.env import Task
from rollq_worker.replay_engine.policy.task_progress import TaskIndex
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.replay_engine.shop_episodes import SHOP, SPLIT, TASKS


@pytest.fixture(scope="session")
def tasks() -> TaskIndex:
    return TaskIndex([SHOP])


@pytest.fixture(scope="session")
def task() -> Task:
    """The one with most moves."""
    return max((SHOP.task(SPLIT, i) for i in range(TASKS)), key=lambda task: len(task.moves))


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with replaying() as url:
        yield url

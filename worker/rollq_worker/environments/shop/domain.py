"""The shop as a Domain: its splits, its tasks, a fresh episode of any of them."""

from collections.abc import Mapping
from functools import cache

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.environments.shop import tools
from rollq_worker.environments.shop.database import Database
from rollq_worker.environments.shop.environment import ShopEnvironment
from rollq_worker.environments.shop.records import SPLITS
from rollq_worker.environments.shop.tasks import make_task
from rollq_worker.protocols import RESPOND, Environment, Task

VERSION = "1"
"""Of rules, data and tasks: rewards are only comparable within one. A test pins what it stands for."""


def load(variant: str | None) -> "ShopDomain":
    """The entry point. Raises JobFailure: there is only one shop."""
    if variant is not None:
        raise JobFailure(f"environment 'shop' has no variant {variant!r}")
    return ShopDomain()


class ShopDomain:
    """Implements protocols.Domain; stateless but for a cache."""

    name = "shop"
    version = f"shop {VERSION}"

    def splits(self) -> Mapping[str, int]:
        return SPLITS

    def task(self, split: str, index: int) -> Task:
        _check(split, index)
        return _task(split, index)

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        _check(split, index)
        if args:
            raise JobFailure(f"environment 'shop' takes no env_args, not {', '.join(sorted(map(str, args)))}")
        return ShopEnvironment(_task(split, index), lambda: _truth(split, index))


def _check(split: str, index: int) -> None:
    if split not in SPLITS:
        raise JobFailure(f"environment 'shop' has no split {split!r}; it has {', '.join(SPLITS)}")
    if type(index) is not int or not 0 <= index < SPLITS[split]:
        raise JobFailure(f"environment 'shop': split {split!r} has tasks 0 to {SPLITS[split] - 1}, not {index!r}")


@cache
def _task(split: str, index: int) -> Task:
    return make_task(split, index)


@cache
def _truth(split: str, index: int) -> Database:
    """The data after the ground truth; only ever read."""
    database = Database()
    for move in _task(split, index).moves:
        if move.name != RESPOND:
            tools.call(database, move.name, move.arguments)
    return database

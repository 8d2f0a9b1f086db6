"""The shop's tasks: many kinds, the same in every process."""

import os
import subprocess
import sys
from hashlib import sha256

from rollq.env import STOP_MARKER
from rollq_worker.environments import shop
from rollq_worker.environments.shop import tools
from tests.rollq_worker.environments.episodes import calls_of

DOMAIN = shop.load(None)
EVERY = [(split, index) for split, size in DOMAIN.splits().items() for index in range(size)]


def test_splits() -> None:
    assert dict(DOMAIN.splits()) == {"train": 500, "test": 100, "dev": 20}


def test_openings_are_unique_and_scripts_long_enough() -> None:
    tasks = [DOMAIN.task(split, index) for split, index in EVERY]
    assert len({task.opening for task in tasks}) == len({task.id for task in tasks}) == len(tasks)
    for task in tasks:
        assert len(task.replies) >= 3
        assert [STOP_MARKER in reply for reply in task.replies] == [False] * (
            len(task.replies) - 1
        ) + [True]
        assert STOP_MARKER not in task.opening


def test_tasks_are_of_many_kinds_and_lengths() -> None:
    lengths = [len(calls_of(DOMAIN.task(split, index))) for split, index in EVERY]
    assert min(lengths) <= 2 and max(lengths) >= 8
    assert sorted(lengths)[len(lengths) // 2] in (4, 5)
    used = {move.name for split, index in EVERY for move in calls_of(DOMAIN.task(split, index))}
    assert used == {schema["function"]["name"] for schema in tools.SCHEMAS}


PRINT_DIGEST = """
import hashlib, json
from rollq_worker.environments import shop
domain = shop.load(None)
for split, size in domain.splits().items():
    for index in range(size):
        task = domain.task(split, index)
        print(task.hash, task.opening, task.instruction, *task.replies, *task.outputs)
        print([(move.name, dict(move.arguments)) for move in task.moves])
"""


def test_the_same_tasks_in_every_process() -> None:
    """If this digest changes, the tasks have changed: raise shop.domain.VERSION as well."""
    digests = set()
    for seed in ("0", "4711"):
        output = subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        assert output.count(b"\n") == 2 * len(EVERY)
        digests.add(sha256(output).hexdigest()[:16])
    assert (shop.domain.VERSION, digests) == ("3", {"50763a66ce73773a"})


def test_a_task_does_not_depend_on_what_was_asked_before() -> None:
    fresh = shop.tasks.make_task("test", 42)
    shop.tasks.make_task("train", 3)
    assert shop.tasks.make_task("test", 42) == fresh == DOMAIN.task("test", 42)

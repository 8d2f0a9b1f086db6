"""Environments from a file without a package: `game.py:load`, a dataset, `maths.jsonl:number`, or a
folder of tasks, `harbor:DIR`.

Such an environment is called `game@` and the first digits of its file's hash, or `maths.number@...`
and `DIR.harbor@...` where the part after the colon is not the default.
"""

import inspect
from collections.abc import Callable
from typing import Any

from rollq.errors import JobFailure
from rollq.job import FOLDERS_OF
from rollq_worker.environments.dataset import dataset
from rollq_worker.extensions.named_files import NamedFile, NamedFiles

FILES = NamedFiles(
    "ROLLQ_ENV_FILES",
    what="environment",
    flag="--env",
    default=lambda path: "load" if path.suffix == ".py" else "exact",
    folders=FOLDERS_OF,
)


def add_file(env: str) -> str:
    """Has this process and its children know the file. Returns the environment's name. Raises
    JobFailure.
    """
    kind, _, folder = env.partition(":")
    return FILES.add(f"{folder}:{kind}" if kind in FOLDERS_OF else env)


def load_of(file: NamedFile) -> Callable[[str | None], Any]:
    """The function that returns the Domain.

    Raises JobFailure, ForOtherWorkers for a file that changes meanwhile, and any error of the file
    itself when it is run.
    """
    if file.path.suffix != ".py":
        load = dataset(file.path, reward=file.part)
        file.check()
        return load
    function = getattr(file.run(), file.part, None)
    if not callable(function):
        raise JobFailure(
            f"{file.path.name} has no function {file.part!r}, which returns the "
            "environment's Domain"
        )
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as e:
        raise JobFailure(
            f"{file.path.name}: {file.part} is called with one argument, which is None for a file: "
            f"{e}"
        ) from e
    return function  # type: ignore[no-any-return]

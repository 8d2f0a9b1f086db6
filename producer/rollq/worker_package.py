"""Imports of rollq_worker, the other half of the distribution. Nothing else of rollq imports it.

It is a late import by name, because rollq never depends on it: a trainer's machine may have none of
the packages that a worker needs, and commands do there what they can without them.
"""

from importlib import import_module
from typing import Any


def for_clients() -> Any:
    """The module `rollq_worker.commands.for_clients`.

    It and its functions raise ImportError where a package is missing.
    """
    return import_module("rollq_worker.commands.for_clients")

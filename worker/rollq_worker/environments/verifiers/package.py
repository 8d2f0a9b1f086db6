"""The installed package `verifiers`, of the one series that rollq has been tested with."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module, metadata
from typing import Any

from rollq.errors import JobFailure
from rollq.extras import install_line

SERIES = "0.4"
"""The series of verifiers that is accepted: others name and call things differently."""


def installed() -> str:
    """Its version. Raises JobFailure without the package, and for another series of it."""
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise JobFailure(f"tasksets need the package verifiers: {install_line('verifiers')}") from None
    if not f"{version}.".startswith(f"{SERIES}."):
        raise JobFailure(f"tasksets need verifiers {SERIES}.*, not {version}: {install_line('verifiers')}")
    return version


@cache
def package() -> Any:
    """`verifiers.v1`. Importing it takes seconds."""
    return import_module("verifiers.v1")


def part(module: str, name: str) -> Any:
    """What `verifiers.v1` itself does not name."""
    return getattr(import_module(f"verifiers.v1.{module}"), name)


async def call(function: Callable[..., Any], available: Mapping[Any, Any]) -> Any:
    """Call a function of the taskset's with the arguments that it asks for."""
    vf = package()
    if getattr(function, "__func__", None) in (vf.Task.setup, vf.Task.finalize):
        return None
    found = part("utils.decorators", "invoke")(function, available)
    return await found if inspect.isawaitable(found) else found

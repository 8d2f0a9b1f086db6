"""The installed package `verifiers`, of a series that rollq has been tested with, and where its
code runs.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module, metadata
from typing import Any, TypeVar

from rollq.errors import ForOtherWorkers, JobFailure
from rollq.pip_extras import install_line

T = TypeVar("T")

SERIES = "0.4"
"""The series of verifiers that is accepted: others name and call things differently."""


def installed() -> str:
    """Version of the package. Raises JobFailure without the package, and for other series of it."""
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise JobFailure(
            f"this environment needs the package verifiers: {install_line('verifiers')}"
        ) from None
    if not version.startswith(f"{SERIES}."):
        raise JobFailure(
            f"this environment needs verifiers {SERIES}.*, not {version}: "
            f"{install_line('verifiers')}"
        )
    return version


@cache
def package() -> Any:
    """`verifiers.v1`. Importing it takes seconds."""
    return import_module("verifiers.v1")


def part(module: str, name: str) -> Any:
    """Parts that `verifiers.v1` itself does not name."""
    return getattr(import_module(f"verifiers.v1.{module}"), name)


def only_in_main_thread(name: str) -> None:
    """Rewards that limit their time by signals are silently wrong elsewhere. Raises ForOtherWorkers
    there.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ForOtherWorkers(
            f"{name} is only played in a process of its own, because rewards of verifiers use "
            f"signals: start the worker with ROLLQ_ISOLATE={name}, or the name of your file's "
            "environment"
        )


class OwnLoop:
    """An episode's event loop, on which the package's asynchronous code runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(work)
        with ThreadPoolExecutor(
            1
        ) as other:  # a thread runs one loop at a time; the replay engine's asks for tools
            return other.submit(self._loop.run_until_complete, work).result()

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Does the last work, if there is any, and closes the loop."""
        try:
            if last is not None:
                self.wait(last)
        finally:
            self._loop.close()


async def call(function: Callable[..., Any], available: Mapping[Any, Any]) -> Any:
    """Calls a function of the taskset's with the arguments that it asks for."""
    vf = package()
    if getattr(function, "__func__", None) in (vf.Task.setup, vf.Task.finalize):
        return None
    found = part("utils.decorators", "invoke")(function, available)
    return await found if inspect.isawaitable(found) else found

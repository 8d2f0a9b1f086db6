"""Makers of sandboxes by name: the entry points of the group `rollq.sandboxes`.

    sandbox = make_sandbox("containers", SandboxSpec(image="python:3.12-slim"))

It does not know how a sandbox is made.
"""

from functools import cache
from importlib.metadata import entry_points

from rollq.env import Sandbox, SandboxMaker, SandboxSpec
from rollq.errors import ForOtherWorkers

GROUP = "rollq.sandboxes"
MAKER = "ROLLQ_SANDBOX"
"""Environment variable of the worker: the maker of the sandboxes of Harbor's tasks."""


def make_sandbox(name: str, spec: SandboxSpec) -> Sandbox:
    """A sandbox by the maker of that name. Raises ForOtherWorkers where this worker has none, or
    cannot load it, and the failures of the maker.
    """
    return _maker(name)(spec)


@cache
def _maker(name: str) -> SandboxMaker:
    entries = entry_points(group=GROUP)
    makers = {entry.value: entry for entry in entries if entry.name == name}
    if len(makers) != 1:
        names = ", ".join(sorted({entry.name for entry in entries})) or "none"
        raise ForOtherWorkers(
            f"{len(makers)} packages here have a maker of sandboxes {name!r}; there are {names} "
            f"(packages add more: {GROUP!r})"
        )
    [entry] = makers.values()
    try:
        maker: SandboxMaker = entry.load()
    except Exception as e:  # other people's code
        raise ForOtherWorkers(
            f"the maker of sandboxes {name!r} ({entry.value}): {type(e).__name__}: {e}"
        ) from e
    return maker

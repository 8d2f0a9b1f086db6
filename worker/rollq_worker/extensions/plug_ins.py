"""Objects that installed packages add to rollq through entry points: each once, by name, checked
when it is loaded.

A plug-in that cannot be loaded is an error, never passed over: a worker without it would read turns
differently from the others. It does not know the purpose of the objects.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, NamedTuple, TypeVar

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.failures import FOREIGN_ERRORS

T = TypeVar("T")


class PlugIn(NamedTuple, Generic[T]):
    """One object of an installed package."""

    name: str
    """The name of its entry point."""
    object: T
    origin: str
    """The entry point and its distribution, for errors."""


def plug_ins(group: str, kind: type[T]) -> Iterator[PlugIn[T]]:
    """The objects of an entry-point group. An entry point loads one object of that kind, or a list
    of them.

    Raises JobFailure, naming the distribution, for one that cannot be loaded or is of another kind.
    """
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        origin = f"{group}: {entry.name} = {entry.value} ({_distribution(entry)})"
        try:
            loaded = entry.load()
        except FOREIGN_ERRORS as e:
            raise JobFailure(
                f"{origin} cannot be loaded: {type(e).__name__}: {e}; repair or uninstall that "
                "distribution"
            ) from e
        for item in loaded if isinstance(loaded, list | tuple) else [loaded]:
            if not isinstance(item, kind):
                raise JobFailure(
                    f"{origin} is a {type(item).__name__}, not a {kind.__name__}; docs/formats.md "
                    "shows one"
                )
            yield PlugIn(entry.name, item, origin)


def with_plug_ins(
    built_in: Mapping[str, T], added: Iterable[tuple[str, PlugIn[T]]]
) -> dict[str, T]:
    """The built-in objects and then the plug-ins, by name. Raises JobFailure for a name that is
    taken.
    """
    objects = dict(built_in)
    origins = dict.fromkeys(built_in, "rollq itself")
    for name, plug_in in added:
        if name in objects:
            raise JobFailure(
                f"{plug_in.origin}: the name {name!r} is taken by {origins[name]}; uninstall one "
                "of the two, or take another name"
            )
        objects[name] = plug_in.object
        origins[name] = plug_in.origin
    return objects


@cache
def function_named(
    what: str,
    name: str,
    group: str,
    own: frozenset[str],
) -> Callable[..., Any]:
    """The function of that name in an entry-point group. Errors say `what` it is, and which ones
    are rollq's `own`.

    Raises JobFailure when there is none, two packages have one, or it cannot be loaded.
    """
    everything = entry_points(group=group)
    entries = {entry.value: entry for entry in everything if entry.name == name}
    if not entries:
        names = ", ".join(sorted(own | {entry.name for entry in everything}))
        raise JobFailure(
            f"{what} {name!r} is unknown here; there are {names} (packages add more: {group!r})"
        )
    if len(entries) > 1:
        raise JobFailure(
            f"{what} {name!r} is claimed by {' and '.join(entries)}: uninstall one of the two "
            "packages"
        )
    [(value, entry)] = entries.items()
    try:
        loaded = entry.load()
    except FOREIGN_ERRORS as e:
        raise JobFailure(f"{what} {name!r} ({value}): {type(e).__name__}: {e}") from e
    return as_function(what, name, loaded, value)


def as_function(
    what: str,
    name: str,
    loaded: object,
    where: str,
) -> Callable[..., Any]:
    """The object as a function. Raises JobFailure unless it can be called."""
    if not callable(loaded):
        raise JobFailure(f"{what} {name!r}: {where} is a {type(loaded).__name__}, not a function")
    return loaded


def check_arguments(
    what: str,
    name: str,
    function: Callable[..., Any],
    values: int,
    key: str,
    args: Mapping[str, Json],
) -> None:
    """Raises JobFailure for a function that does not take so many values, and by keyword the
    `args`, which the job has under `key`.
    """
    try:
        inspect.signature(function).bind(*[None] * values, **args)
    except (TypeError, ValueError) as e:  # a ValueError: it was not written in Python
        raise JobFailure(f"{what} {name!r} with {key} {dict(args)!r:.200}: {e}") from e


def _distribution(entry: EntryPoint) -> str:
    if entry.dist:
        return f"{entry.dist.name} {entry.dist.version}"
    return "an unknown distribution"

"""What installed packages add to rollq through entry points: each object once, by name, checked when it is loaded.

A plug-in that cannot be loaded is an error, never passed over: a worker without it would read turns differently from
the others. It does not know what the objects are for.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, NamedTuple, TypeVar

from rollq.errors import JobFailure

T = TypeVar("T")


class PlugIn(NamedTuple, Generic[T]):
    """One object of an installed package."""

    name: str
    """The name of its entry point."""
    object: T
    origin: str
    """The entry point and its distribution, for errors."""


def plug_ins(group: str, kind: type[T]) -> Iterator[PlugIn[T]]:
    """The objects of an entry-point group. An entry point loads one object of that kind, or a list of them.

    Raises JobFailure, naming the distribution, for one that cannot be loaded or is of another kind.
    """
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        origin = f"{group}: {entry.name} = {entry.value} ({_distribution(entry)})"
        try:
            loaded = entry.load()
        except Exception as e:  # other people's code
            raise JobFailure(
                f"{origin} cannot be loaded: {type(e).__name__}: {e}; repair or uninstall that distribution"
            ) from e
        for item in loaded if isinstance(loaded, list | tuple) else [loaded]:
            if not isinstance(item, kind):
                raise JobFailure(
                    f"{origin} is a {type(item).__name__}, not a {kind.__name__}; docs/formats.md shows one"
                )
            yield PlugIn(entry.name, item, origin)


def with_plug_ins(built_in: Mapping[str, T], added: Iterable[tuple[str, PlugIn[T]]]) -> dict[str, T]:
    """The built-in objects and then the plug-ins, by name. Raises JobFailure for a name that is taken."""
    known = dict(built_in)
    origins = dict.fromkeys(built_in, "rollq itself")
    for name, plug_in in added:
        if name in known:
            raise JobFailure(
                f"{plug_in.origin}: the name {name!r} is taken by {origins[name]}; uninstall one of the two, or take"
                " another name"
            )
        known[name], origins[name] = plug_in.object, plug_in.origin
    return known


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"

"""Texts of events that came over the wire are decoded when they are first asked for. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar


class DeferredTexts:
    """Base of the events that carry texts. Decoding leaves the texts out; `_read` fills them in when one is first asked
    for."""

    __slots__ = ("_read",)
    _read: Callable[[], Mapping[str, Any]]
    """Fills in every field that was left out. Raises ContractError."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Only for an unset slot. An event built by hand has no `_read`, which raises AttributeError as usual.
            for field_name, value in object.__getattribute__(self, "_read")().items():
                object.__setattr__(self, field_name, value)
            return object.__getattribute__(self, name)


E = TypeVar("E", bound=DeferredTexts)


def without_texts(kind: type[E], *names: str) -> Callable[..., E]:
    """A function that makes an event of the values of these fields and, last, its `_read`."""
    fields = (*names, "_read")
    # A call for each field, written out as dataclasses does it: loops take twice as long, and a batch has thousands.
    calls = [f" set_{name}(event, {name})" for name in fields]
    lines = [f"def make({', '.join(fields)}):", " event = new(kind)", *calls, " return event"]
    scope: dict[str, Any] = {"new": object.__new__, "kind": kind}
    scope.update((f"set_{name}", getattr(kind, name).__set__) for name in fields)
    exec("\n".join(lines), scope)
    made: Callable[..., E] = scope["make"]
    return made

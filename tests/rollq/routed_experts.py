"""Routed experts that are easy to know again, for tests."""

from collections.abc import Sequence
from dataclasses import replace

from rollq.events import Event, Prompt, Sampled
from rollq.trajectory_extras import ExpertShape

ASKED = {"layers": 2, "top_k": 2, "experts": 200}
SHAPE = ExpertShape(**ASKED)


def row(place: int, shape: ExpertShape = SHAPE) -> bytes:
    """The row of the token at that place of its trace."""
    return bytes((place + step) % shape.experts for step in range(shape.row_bytes))


def routed(events: Sequence[Event], shape: ExpertShape = SHAPE) -> list[Event]:
    """The same events, each sampled one with the rows of its trace that are new with it."""
    found: list[Event] = []
    lengths: list[int] = []  # of each trace, and how many of its tokens have rows
    rows: list[int] = []
    for event in events:
        if isinstance(event, Prompt):
            lengths.append(0)
            rows.append(0)
        ids = getattr(event, "ids", ())
        trace = -1 if getattr(event, "trace", None) is None else event.trace  # type: ignore[union-attr]
        if len(ids):
            lengths[trace] += len(ids)
        if isinstance(event, Sampled):
            places = range(rows[trace], lengths[trace] - 1)
            event = replace(
                event, experts=shape.part(b"".join(row(place, shape) for place in places))
            )
            rows[trace] = lengths[trace] - 1
        found.append(event)
    return found

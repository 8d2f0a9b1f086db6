"""Routed experts that are easy to know again, for tests."""

from collections.abc import Iterator, Sequence

from rollq.events import Event
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ExpertShape, Extra
from rollq.wire.routed_experts import part_lengths

ASKED = {"layers": 2, "top_k": 2, "experts": 200}
SHAPE = ExpertShape(**ASKED)


def row(place: int, shape: ExpertShape = SHAPE) -> bytes:
    """The row of the token at that place of its trace."""
    return bytes((place + step) % shape.experts for step in range(shape.row_bytes))


def parts(events: Sequence[Event], shape: ExpertShape = SHAPE) -> Iterator[Extra]:
    """A part for each sampled event of one trace."""
    start = 0
    for length in part_lengths(events):
        yield shape.part(b"".join(row(place, shape) for place in range(start, start + length)))
        start += length


def parts_of(trajectory: Trajectory) -> Iterator[Extra]:
    """A part for each sampled event, of any number of traces."""
    for length in part_lengths(trajectory.events):
        yield SHAPE.part(b"".join(map(row, range(length))))

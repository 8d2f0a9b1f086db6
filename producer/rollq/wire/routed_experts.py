"""Routed experts: the experts of a mixture-of-experts model that each token went to, for trainers that replay them.

The engine reports them with each reply, for the tokens that were new to it. They are recorded in parts beside the
journal: one part for each `Sampled` event. Joined, they have one row for each token of `Trajectory.tokens`. The engine
never reads the last token that it sampled, so it has no row of that token, nor of a bridge that nothing was sampled
after. Those tokens, which end a trace, get a filler. It knows nothing of Redis.
"""

from collections.abc import Iterator, Sequence

from rollq.errors import ContractError
from rollq.events import Event, Observed, Prompt, Sampled
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ExpertShape, Extra


def join_parts(trajectory: Trajectory, parts: Sequence[Extra]) -> Extra:
    """One row for each token of `trajectory.tokens`, from the part of each sampled event. Raises ContractError."""
    where = f"job {trajectory.job.id}: routed experts"
    shape = ExpertShape.read(trajectory.job.routed_experts)
    sampled = [event for event in trajectory.events if isinstance(event, Sampled)]
    lengths = list(part_lengths(trajectory.events))
    if len(parts) < len(lengths):
        raise ContractError(f"{where}: {len(parts)} parts of {len(lengths)} are there")
    rows: list[bytes] = []
    # A part without an event is of an attempt that died before it.
    of_event = {id(event): (n, part) for event, n, part in zip(sampled, lengths, parts, strict=False)}
    filler, missing = shape.filler(), 0
    for event in trajectory.spans:
        if isinstance(event, Prompt):
            rows.append(filler * missing)
            missing = len(event.ids)
        elif isinstance(event, Observed):
            missing += len(event.ids)
        elif isinstance(event, Sampled):
            length, part = of_event[id(event)]
            wanted = (length, shape.layers, shape.top_k)
            if part.shape != wanted or part.dtype != shape.dtype:
                raise ContractError(f"{where}: {part.dtype} {part.shape} where {shape.dtype} {wanted} belongs")
            rows.append(part.data)
            missing += len(event.ids) - length
    return shape.part(b"".join([*rows, filler * missing]))


def part_lengths(events: Sequence[Event]) -> Iterator[int]:
    """The rows of each sampled event's part: those of the tokens of its trace that have none yet, but for the last."""
    missing: list[int] = []  # by trace
    for event in events:
        if isinstance(event, Prompt):
            missing.append(len(event.ids))
        elif isinstance(event, Sampled | Observed):
            trace = -1 if event.trace is None else event.trace
            missing[trace] += len(event.ids)
            if isinstance(event, Sampled):
                yield missing[trace] - 1
                missing[trace] = 1

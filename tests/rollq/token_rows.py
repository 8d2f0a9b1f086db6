"""Made-up episodes whose token ids say what is true of each token, and the check of a row against
that.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from rollq.batch import Batch, Group
from rollq.events import Closed, Event, Finish, Observed, Prompt, Sampled, Stop, VersionSpan
from rollq.teachers import logprobs_of, top_ids_of, top_logprobs_of
from rollq.trajectory import Header, Trajectory
from rollq.trajectory_extras import Extra
from tests.rollq.samples import job

Turn = tuple[list[int], int]
"""Number of tokens of each sampled piece, and of the bridge."""
Trace = tuple[int, list[Turn]]
"""Number of tokens of the prompt, and the turns."""

turns = st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 3))
traces = st.tuples(st.integers(1, 5), st.lists(turns, max_size=3))
episodes = st.lists(traces, min_size=1, max_size=3)


def sampled_id(token: int) -> bool:
    """Sampled tokens have even ids, all others odd ones."""
    return token % 2 == 0


def logprob_of(token: int) -> float:
    """Exact in a float32, different for neighbours, and never 0.0 for a sampled token."""
    return -(token % 1024 + 1) / 1024 if sampled_id(token) else 0.0


def version_of(token: int) -> str | None:
    """Changes within a reply."""
    return f"step-{token // 6 % 5}" if sampled_id(token) else None


def spans(ids: Sequence[int]) -> Iterator[VersionSpan]:
    at = 0
    for version, run in itertools.groupby(ids, version_of):
        end = at + len(list(run))
        yield VersionSpan(str(version), at, end)
        at = end


def episode(
    shape: Sequence[Trace], numbers: Iterator[int], sample: int = 0, reward: float = 1.0
) -> Trajectory:
    """Each number makes one token id, so that no id comes twice."""

    def ids(count: int, sampled: bool) -> array[int]:
        return array("I", [2 * next(numbers) + (not sampled) for _ in range(count)])

    events: list[Event] = []
    turn = 0
    for prompt, played in shape:
        events.append(Prompt(ids=ids(prompt, False), messages=[], tools=[]))
        for pieces, bridge in played:
            for count in pieces:
                piece = ids(count, True)
                logprobs = array("f", map(logprob_of, piece))
                versions = list(spans(piece))
                events.append(
                    Sampled(
                        turn=turn,
                        ids=piece,
                        logprobs=logprobs,
                        versions=versions,
                        finish=Finish.ABORT,
                        text="",
                    )
                )
            events.append(
                Observed(turn=turn, message={}, actions=[], replies=[], ids=ids(bridge, False))
            )
            turn += 1
    events.append(Closed(stop=Stop.DONE, reward=reward))
    return Trajectory(
        job=job(sample, size=64, labels={"sample": sample}), header=Header(attempt=1), events=events
    )


def batch_of(*groups: Sequence[Trajectory], dead: Sequence[str] = ()) -> Batch:
    """Held by nobody."""
    unheld: Callable[..., None] = lambda *_: None  # noqa: E731
    made = [
        Group(id=f"g{seq}", seq=seq, size=64, trajectories=trajectories, dead=dead)
        for seq, trajectories in enumerate(groups)
    ]
    return Batch(step=0, groups=made, on_ack=unheld, on_skip=unheld, on_reject=unheld)


batches = st.lists(st.lists(episodes, min_size=1, max_size=3), max_size=3).map(
    lambda groups: _batch(groups, itertools.count())
)


def _batch(groups: Sequence[Sequence[Sequence[Trace]]], numbers: Iterator[int]) -> Batch:
    return batch_of(
        *(
            [
                episode(shape, numbers, sample, reward=float(sample % 2))
                for sample, shape in enumerate(group)
            ]
            for group in groups
        )
    )


def sampled_tokens(batch: Batch) -> list[int]:
    """In the order in which the engine gave them."""
    events = [event for trajectory in batch.trajectories for event in trajectory.events]
    return [token for event in events if isinstance(event, Sampled) for token in event.ids]


def scored(trajectory: Trajectory, teacher: str, top_k: int = 0) -> Trajectory:
    """With the scores of a teacher: half the logprob of each sampled token, and as likeliest tokens
    the ids from it on.
    """
    ids = [id for id, sampled in zip(trajectory.tokens, trajectory.mask, strict=True) if sampled]

    def extra(typecode: str, dtype: str, values: Sequence[float], *shape: int) -> Extra:
        return Extra(dtype=dtype, shape=(len(ids), *shape), data=array(typecode, values).tobytes())

    extras = {logprobs_of(teacher): extra("f", "float32", [logprob_of(id) / 2 for id in ids])}
    if top_k:
        top = [id + rank for id in ids for rank in range(top_k)]
        extras[top_ids_of(teacher)] = extra("I", "uint32", top, top_k)
        extras[top_logprobs_of(teacher)] = extra("f", "float32", top, top_k)
    return replace(trajectory, extras=extras)

"""A trajectory's segments: the rows to train on."""

import itertools
from array import array

import numpy as np
from hypothesis import given

from rollq.events import Observed, Sampled
from rollq.trajectory import Trajectory
from tests.rollq.token_rows import Trace, episode, episodes, logprob_of, sampled_id, version_of


def made(shape: list[Trace]) -> Trajectory:
    return episode(shape, itertools.count())


@given(episodes)
def test_segments_tile_what_was_sampled(shape: list[Trace]) -> None:
    trajectory = made(shape)
    rows = [[*segment.prompt_ids, *segment.response_ids] for segment in trajectory.segments()]
    ends = list(itertools.accumulate(trajectory.traces))
    traces = [
        trajectory.tokens[end - length : end].tolist()
        for length, end in zip(trajectory.traces, ends, strict=True)
    ]
    assert rows == [trace for trace in traces if any(map(sampled_id, trace))]
    assert [token for row in rows for token in row if sampled_id(token)] == [
        token for event in trajectory.events if isinstance(event, Sampled) for token in event.ids
    ]


@given(episodes)
def test_what_is_said_of_a_token_is_said_at_its_place(shape: list[Trace]) -> None:
    trajectory = made(shape)
    turn_of = {
        t: e.turn for e in trajectory.events if isinstance(e, Sampled | Observed) for t in e.ids
    }
    for segment in trajectory.segments():
        assert not any(map(sampled_id, segment.prompt_ids))
        assert list(segment.mask) == [sampled_id(token) for token in segment.response_ids]
        assert segment.logprobs == array("f", map(logprob_of, segment.response_ids))
        assert segment.versions == [version_of(token) for token in segment.response_ids]
        assert list(segment.turns) == [turn_of[token] for token in segment.response_ids]


def test_numpy_reads_the_buffers_as_they_are() -> None:
    trajectory = made([(3, [([2], 1), ([1], 0)])])
    tokens, mask, logprobs = (
        np.frombuffer(buffer, dtype)
        for buffer, dtype in (
            (trajectory.tokens, np.uint32),
            (trajectory.mask, np.bool_),
            (trajectory.logprobs, np.float32),
        )
    )
    assert mask.tolist() == (tokens % 2 == 0).tolist() == [False] * 3 + [True] * 2 + [False, True]
    assert logprobs[mask].tolist() == [logprob_of(token) for token in tokens[mask].tolist()]
    assert not logprobs[~mask].any()

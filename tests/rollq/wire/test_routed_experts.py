"""Routed experts: each token of a trajectory has its row, whatever the order of events; what is
amiss is named.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import ContractError
from rollq.events import Event, Finish, Sampled
from rollq.job import Purpose
from rollq.training.arrays import array_of, segment_experts
from rollq.trajectory import Header, Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS, ExpertShape, Extra
from rollq.wire.events import decode_event, encode_event
from rollq.wire.routed_experts import routed_experts
from tests.rollq.routed_experts import ASKED, SHAPE, routed, row
from tests.rollq.samples import closed, events, job, observed, prompt, sampled, trajectory

ASKING = job(routed_experts=ASKED)


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """The events of one trace: turns that may be interrupted, and bridges."""
    found: list[Event] = [prompt(*range(1, draw(st.integers(2, 6))))]
    for turn in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 2))):
            found.append(sampled(turn, *range(9, 9 + draw(st.integers(1, 4))), finish=Finish.ABORT))
        found.append(sampled(turn, *range(9, 9 + draw(st.integers(1, 4)))))
        found.append(observed(turn, *range(1, draw(st.integers(2, 5)))))
    return found


@given(st.lists(traces(), min_size=1, max_size=3))
def test_rows_of_several_traces_and_of_interrupted_turns(found: list[list[Event]]) -> None:
    all_events = [event for trace in found for event in routed(trace)]
    played = Trajectory(job=ASKING, header=Header(attempt=1), events=[*all_events, closed()])
    played = replace(played, extras={ROUTED_EXPERTS: routed_experts(played)})
    segments = played.segments()
    assert len(segment_experts(played)) == len(segments) == len(found)
    for segment, experts in zip(segments, segment_experts(played), strict=True):
        tokens = len(segment.prompt_ids) + len(segment.response_ids)
        last = len(segment.prompt_ids) + segment.mask.rindex(1)
        rows = [row(place) if place < last else SHAPE.filler() for place in range(tokens)]
        assert experts.shape == (tokens, 2, 2) and experts.tobytes() == b"".join(rows)


def test_a_trajectory_without_them_has_none() -> None:
    assert segment_experts(trajectory()) == []


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (None, r"nothing where uint8 \(4, 2, 2\)"),
        (SHAPE.part(bytes(12)), r"uint8 \(3, 2, 2\) where uint8 \(4, 2, 2\)"),
        (Extra(dtype="int8", shape=(4, 2, 2), data=bytes(16)), "int8 .* where uint8"),
        (Extra(dtype="uint8", shape=(4, 4), data=bytes(16)), r"uint8 \(4, 4\) where"),
    ],
)
def test_rows_that_do_not_fit_are_named(experts: Extra | None, message: str) -> None:
    first, second, *rest = routed(
        [prompt(1, 2, 3, 4), sampled(0, 9), observed(0), sampled(1), closed()]
    )
    assert isinstance(second, Sampled)
    played = Trajectory(
        job=ASKING,
        header=Header(attempt=1),
        events=[first, replace(second, experts=experts), *rest],
    )
    with pytest.raises(ContractError, match=f"job r/g/0: routed experts of turn 0: {message}"):
        routed_experts(played)


def test_more_experts_take_two_bytes() -> None:
    shape = ExpertShape(layers=1, top_k=2, experts=300)
    assert (shape.dtype, shape.row_bytes) == ("uint16", 4)
    assert array_of(shape.part(np.array([299, 3], "<u2").tobytes())).tolist() == [[[299, 3]]]
    assert array_of(shape.part(shape.filler())).tolist() == [[[0, 1]]]
    assert ExpertShape(layers=1, top_k=2, experts=256).dtype == "uint8"


@given(
    st.builds(
        ExpertShape, layers=st.integers(1, 9), top_k=st.integers(1, 9), experts=st.integers(9, 400)
    )
)
def test_entries_of_a_filler_differ_in_each_layer(shape: ExpertShape) -> None:
    for layer in array_of(shape.part(shape.filler()))[0].tolist():
        assert len(set(layer)) == shape.top_k and max(layer) < shape.experts


def test_they_travel_with_their_event() -> None:
    [_, event, *_] = routed(events())
    assert isinstance(event, Sampled)
    for whole in (event, replace(event, trace=1), replace(event, asked={"temperature": 0.5})):
        read = decode_event(encode_event(whole, "r/g/0"), "r/g/0")
        assert isinstance(read, Sampled)
        assert (read.experts, read.trace, read.asked) == (whole.experts, whole.trace, whole.asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layers": 2}, "must have experts, layers, top_k"),
        ({**ASKED, "tokens": 1}, "must have experts, layers, top_k"),
        (
            {**ASKED, "layers": 0},
            "layers must be a whole number of at least 1 and at most",
        ),
        ({**ASKED, "layers": True}, "layers must be a whole number"),
        ({**ASKED, "experts": 1}, "top_k 2 of 1 experts"),
        (
            {**ASKED, "experts": 70000},
            "experts must be a whole number of at least 1 and at most",
        ),
        ([2, 2, 200], "must be a mapping, not "),
        (None, "must be a mapping, not None"),
        ("", "must be a mapping, not ''"),
    ],
)
def test_a_job_names_the_shape_of_its_model(asked: object, message: str) -> None:
    with pytest.raises(ContractError, match=f"job r/g/0: routed_experts.*{message}"):
        job(routed_experts=asked)


def test_an_evaluation_records_none() -> None:
    with pytest.raises(ContractError, match="routed_experts are for training"):
        job(routed_experts=ASKED, purpose=Purpose.EVAL)

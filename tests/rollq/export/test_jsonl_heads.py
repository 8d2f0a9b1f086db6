"""The facts of a line are those of the whole line, with and without msgspec."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollq.events import Closed
from rollq.export import jsonl
from rollq.export.jsonl import Facts, line_head
from rollq.export.record import encode, record
from tests.rollq.export.trajectories import sound, sound_traces
from tests.rollq.samples import trajectory
from tests.rollq_view.hostile import said_everywhere

NAMES = (
    '"messages":[',
    ',"tokens":[',
    '},"tokens":[',
    '],"info":{',
    ',"pieces":[',
    "]]",
    "a",
    "messages",
    "\ud800",
)
nested = st.recursive(
    st.one_of(
        st.sampled_from(NAMES),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.none(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["messages", "tokens", "info", "pieces", "mask", "a"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
infos = st.dictionaries(st.sampled_from(["info", "tokens", "messages", "mask", "job"]), nested)


@pytest.fixture(params=["msgspec", "json"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "json":
        monkeypatch.setitem(sys.modules, "msgspec", None)
    jsonl._decoder.cache_clear()
    yield
    jsonl._decoder.cache_clear()


@given(sound_traces, infos)
@example([], {"messages": [], "info": {}, "tokens": []})
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_facts_of_a_line_are_what_the_whole_line_says(shape: list, info: dict) -> None:  # type: ignore[type-arg]
    made = sound(shape)
    events = [
        replace(event, info=info) if isinstance(event, Closed) else event for event in made.events
    ]
    line = encode(replace(made, events=events))
    found, wrong = line_head(line)
    whole = json.loads(line)
    assert [found[name] for name in Facts.__annotations__] == [
        whole[name] for name in Facts.__annotations__
    ]
    assert (found["sampled"], wrong) == (sum(whole["mask"]), "")


def test_a_line_of_another_program_is_read_or_named() -> None:
    spaced = json.dumps(record(trajectory())).encode()
    assert line_head(spaced)[0]["sampled"] == 4
    assert line_head(encode(said_everywhere()))[1] == ""
    for line in (b"not json\n", b"[1]\n", b"\xff\xfe\n", b"[" * 100_000):
        found, wrong = line_head(line)
        assert (found, bool(wrong)) == ({}, True)


def test_heads_go_on_where_they_ended_and_leave_a_torn_line(tmp_path: Path) -> None:
    path, line = tmp_path / "x.jsonl", encode(trajectory())
    path.write_bytes(line + line[:100])
    [first] = jsonl.heads(path)
    path.write_bytes(line + line)
    [second] = jsonl.heads(path, first)
    assert (first.number, second.number, second.start) == (1, 2, len(line))
    assert jsonl.read_at(path, second.start) == json.loads(line)

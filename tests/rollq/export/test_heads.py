"""The facts that are cut out of a line are those of the whole line."""

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rollq.events import Closed
from rollq.export import jsonl
from rollq.export.heads import _BODIES, _cut, line_head
from rollq.export.record import encode, record
from tests.rollq.export.trajectories import sound, sound_traces
from tests.rollq.samples import trajectory
from tests.rollq.viewer.hostile import said_everywhere

NAMES = ('"messages":[', ',"tokens":[', '},"tokens":[', '],"info":{', ',"pieces":[', "]]", "a", "messages", "tokens")
nested = st.recursive(
    st.one_of(st.sampled_from(NAMES), st.integers(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["messages", "tokens", "info", "pieces", "a"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(sound_traces, st.dictionaries(st.sampled_from(["info", "tokens", "messages", "pieces"]), nested))
def test_what_is_cut_out_is_what_the_line_says(shape: list, info: dict) -> None:  # type: ignore[type-arg]
    made = sound(shape)
    events = [replace(event, info=info) if isinstance(event, Closed) else event for event in made.events]
    line = encode(replace(made, events=events))
    found, wrong = line_head(line)
    whole = json.loads(line)
    facts = {name: value for name, value in whole.items() if name not in _BODIES}
    assert (found, wrong) == (facts | {"sampled": sum(whole["mask"])}, "")


def test_the_usual_line_is_cut() -> None:
    assert _cut(encode(trajectory())) is not None
    assert _cut(encode(said_everywhere())) is not None


def test_a_line_of_another_program_is_read_whole_or_named() -> None:
    spaced = json.dumps(record(trajectory())).encode()
    assert line_head(spaced)[0]["sampled"] == 4
    for line in (b"not json\n", b"[1]\n", b"\xff\xfe\n", b"[" * 100_000):
        found, wrong = line_head(line)
        assert (found, bool(wrong)) == ({}, True)


def test_heads_go_on_where_they_ended_and_leave_a_torn_line(tmp_path: Path) -> None:
    path, line = tmp_path / "x.jsonl", encode(trajectory())
    path.write_bytes(line + line[:100])
    [first] = jsonl.heads(path, None)
    path.write_bytes(line + line)
    [second] = jsonl.heads(path, first.end)
    assert (first.name, second.name, second.where) == ("line 1", "line 2", len(line))
    assert jsonl.read_at(path, second.where) == json.loads(line)

"""The exported form: what a line holds, and that the audit can read it back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from rollq.events import Acted, Observed
from rollq.export.record import as_json, record
from rollq.export.times import episode_times
from rollq.export.validation import faults
from rollq.trajectory import Trajectory
from rollq_worker.audit.exported_file import read
from tests.rollq.agent_episodes import branching, interleaved
from tests.rollq.samples import job, observed, trajectory


def test_a_line_says_how_its_tokens_were_sampled(tmp_path: Path):
    sampling = {"temperature": 0.7, "repetition_penalty": 1.1}
    line = record(trajectory(of=job(sampling=sampling)))
    assert line["sampling"] == sampling
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.job, *next(iter(found.conditions.values()))) == (
        "r/g/0",
        0.7,
        "repetition_penalty",
        "",
    )
    assert found.tokens.tolist() == line["tokens"] and list(found.mask) == line["mask"]


def test_a_line_has_the_arguments_that_the_template_was_given() -> None:
    made = trajectory()
    assert "template_kwargs" not in record(made)
    kwargs = {"enable_thinking": False, "preserve_thinking": True}
    assert (
        record(replace(made, header=replace(made.header, template_kwargs=kwargs)))[
            "template_kwargs"
        ]
        == kwargs
    )


def test_the_record_of_an_agent_says_which_conversation_is_which_trace() -> None:
    line = record(branching())
    assert faults(line) == [] and line["messages"] == branching().messages
    assert [trace["turns"] for trace in line["conversations"]] == [[0, 2], [1, 3], [4]]
    assert [trace["tools"] for trace in line["conversations"]] == [["look"], [], []]
    assert [trace.get("behind") for trace in line["conversations"]] == [None, None, [0, 0]]
    assert [(step["turn"], step["text"]) for step in line["steps"]] == [
        (None, "Hello"),
        (0, "It is red."),
    ]
    assert line["pieces"][2:4] == [[1, "stop", {"temperature": 0.3}]] * 2
    assert "unanswered" not in line
    wrong = line | {"conversations": line["conversations"][:2]}
    assert "it has 3 traces" in faults(wrong)[0]


def test_a_single_trace_of_an_agent_is_its_conversation() -> None:
    events = [event for event in branching().events if not isinstance(event, Acted)][:1]
    assert "conversations" not in record(replace(branching(), events=events))


def test_the_time_of_an_agent_is_what_nothing_else_claims() -> None:
    times = episode_times(branching())
    assert times == sorted(times, key=lambda span: span.start)
    agent = [span[1:] for span in times if span.kind == "agent"]
    assert agent == [(3.0, 0.2, 0), (3.7, 0.3, 0), (6.0, 0.5, 1)]


@pytest.mark.parametrize(
    ("name", "recorded", "kind"),
    [
        ("", {}, "user"),  # the opening
        ("respond", {}, "user"),
        ("respond", {"user": []}, "environment"),
        ("look", {}, "environment"),
        ("look", {"user": ["Wait!"]}, "user"),
    ],
)
def test_a_time_is_the_users_where_the_user_spoke(name: str, recorded: Any, kind: str) -> None:
    """Whatever the role of the reply: agents that act in text get tool results as a user's."""
    action = {"name": name, "arguments": {}, **recorded}
    text_reply = {"role": "user", "content": "It is red."}
    turn = replace(observed(), actions=[action], replies=[text_reply])
    for event in (turn, Acted(action=action, text="It is red.")):
        (span,) = episode_times(replace(trajectory(), events=[event]))
        assert span.kind == kind


@given(interleaved())
def test_records_of_traces_that_took_turns_are_valid(pair: tuple[Trajectory, Trajectory]) -> None:
    for made in pair:
        line = json.loads(as_json(record(made)))
        assert faults(line) == []


def test_turns_that_nothing_answered_are_told_by_trace() -> None:
    events = [
        event for event in branching().events if not (isinstance(event, Observed) and not event.ids)
    ][:-1]
    line = record(replace(branching(), events=events))
    assert [trace.get("unanswered") for trace in line["conversations"]] == ["a2", "a3", "a4"]
    assert line["unanswered"] == "a4"

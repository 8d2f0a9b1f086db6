"""Agent strategies: what becomes of the calls of a turn, and the system prompt."""

import pytest

from rollq import errors
from rollq.events import Stop
from rollq_worker.fakes import FakeEnvironment, FakeUser
from tests.rollq_worker.episode.episodes import TWO_CALLS, run


def test_a_tool_call_named_respond_does_not_speak_to_the_user():
    user = FakeUser()
    trajectory = run('{"name": "respond", "arguments": {}}', "bye", user=user)
    assert user.heard == ["bye"]
    assert "no tool named" in trajectory.messages[3]["content"]


def test_of_several_calls_the_first_is_carried_out_and_the_others_counted():
    environment = FakeEnvironment()
    trajectory = run(TWO_CALLS, "bye", environment=environment)
    assert [dict(a.arguments) for a in environment.actions[:-1]] == [{"a": 1}]
    observed = trajectory.events[2]
    assert (len(observed.actions), observed.extra_calls, len(observed.replies)) == (1, 1, 1)


def test_all_calls_of_a_turn_when_the_job_says_so():
    environment = FakeEnvironment()
    trajectory = run(TWO_CALLS, "bye", environment=environment, agent_args={"calls": "all"})
    assert [dict(a.arguments) for a in environment.actions[:-1]] == [{"a": 1}, {"a": 2}]
    assert [m["role"] for m in trajectory.messages[2:5]] == ["assistant", "tool", "tool"]
    ids = [call["id"] for call in trajectory.messages[2]["tool_calls"]]
    assert ids == [m["tool_call_id"] for m in trajectory.messages[3:5]]
    assert len(set(ids)) == 2
    assert trajectory.events[2].extra_calls == 0


def test_several_calls_refused_are_malformed():
    environment = FakeEnvironment()
    trajectory = run(TWO_CALLS, environment=environment, agent_args={"calls": "refuse"})
    assert (trajectory.stop, environment.actions) == (Stop.MALFORMED, [])
    assert "one at a time" in trajectory.messages[3]["content"]


@pytest.mark.parametrize(
    "job",
    [
        {"agent": "telepathy"},
        {"agent_args": {"single": 1}},
        *({"agent_args": {"calls": calls}} for calls in ("some", None, ["all"], {})),
        {"agent_args": {"examples": ["user: hi"]}},
        {"agent": "act", "agent_args": {"calls": "all"}},
        {"agent": "react", "agent_args": {"examples": ["user: hi"]}},
        {"agent": "few-shot"},
        *(
            {"agent": "few-shot", "agent_args": {"examples": wrong}}
            for wrong in ([], "hi", [""], [1], None)
        ),
        {"agent": "few-shot", "agent_args": {"examples": ["user: hi"], "calls": "some"}},
    ],
)
def test_an_unknown_strategy_is_the_jobs_fault(job):
    with pytest.raises(errors.JobFailure, match=r"^agent(_args of| strategy 'telepathy')"):
        run("hi", **job)


def test_the_single_tool_instruction_is_part_of_the_prompt():
    trajectory = run("bye", agent_args={"single_tool": True})
    assert "exactly one tool call" in trajectory.messages[0]["content"]


def test_examples_follow_the_policy():
    args = {
        "examples": ["user: hi\nassistant: bye", "user: ho"],
        "single_tool": True,
        "calls": "all",
    }
    trajectory = run(TWO_CALLS, "bye", agent="few-shot", agent_args=args)
    prompt = trajectory.messages[0]["content"]
    assert prompt.startswith(
        "policy\n\nExample 1:\nuser: hi\nassistant: bye\n\nExample 2:\nuser: ho\n\nIn each turn"
    )
    assert [m["role"] for m in trajectory.messages[2:5]] == ["assistant", "tool", "tool"]

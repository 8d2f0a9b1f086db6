"""The ids of tool calls."""

from tests.rollq_worker.episode.episodes import CALL, run


def test_calls_keep_the_ids_that_the_model_gave_them():
    texts = [
        '[{"id": "x1", "name": "add", "arguments": {}}, {"id": "x1", "name": '
        '"add", "arguments": {}}]',
        CALL,
        "{oops",
        '{"id": "x1", "name": "add", "arguments": {}}',
        "bye",
    ]
    trajectory = run(*texts, agent_args={"calls": "all"})
    called = [call["id"] for m in trajectory.messages for call in m.get("tool_calls", ())]
    assert called == ["x1", "call_1", "call_2", "x1"]
    answered = [m["tool_call_id"] for m in trajectory.messages if m["role"] == "tool"]
    assert answered == ["x1", "call_1", "call_2", "call_3", "x1"]

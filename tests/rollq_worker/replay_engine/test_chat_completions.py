"""Chat completions: the simulated user and the plain assistant."""

from typing import Any

import pytest
import requests

from rollq.env import RESPOND, Task
from rollq_worker.replay_engine.ground_truth import POLITE
from rollq_worker.users.openai import GREETING, PROMPT


def ask(address: str, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    answer = requests.post(f"{address}/v1/chat/completions", json={"messages": messages, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


def test_a_simulated_user_says_the_scripted_lines(address: str, task: Task) -> None:
    messages = [{"role": "system", "content": PROMPT.format(instruction=task.instruction)}]
    for line in [task.opening, *task.replies, task.replies[-1]]:
        messages.append({"role": "user", "content": GREETING})
        said = ask(address, messages)["message"]["content"]
        assert said == line
        messages.append({"role": "assistant", "content": said})


def test_an_assistant_makes_the_moves(address: str, task: Task) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": task.opening}]}]
    for move in task.moves:
        choice = ask(address, messages)
        messages.append(choice["message"])
        if move.name == RESPOND:
            assert choice["message"]["content"] == move.arguments["content"]
            messages.append({"role": "user", "content": "Yes."})
        else:
            assert choice["finish_reason"] == "tool_calls"
            call = choice["message"]["tool_calls"][0]
            assert call["function"]["name"] == move.name
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
    assert ask(address, messages)["message"]["content"] == POLITE


def test_a_message_is_cut_at_its_length(address: str) -> None:
    choice = ask(address, [{"role": "user", "content": "Hi"}], max_tokens=2)
    assert choice["finish_reason"] == "length"
    assert POLITE.startswith(choice["message"]["content"])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": 5}, {"role": "user", "content": None}],
    ],
)
def test_odd_conversations_get_a_polite_answer(address: str, messages: list[dict[str, Any]]) -> None:
    assert ask(address, messages)["message"]["content"] == POLITE

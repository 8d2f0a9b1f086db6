"""Chat completions: the simulated user."""

from typing import Any

import pytest
import requests

from rollq.env import Task
from rollq_worker.replay_engine.policy.ground_truth import POLITE
from rollq_worker.users.openai import GREETING, PROMPT

HELLO = {"role": "user", "content": "Hi"}


def ask(address: str, messages: list[dict[str, Any]]) -> Any:
    answer = requests.post(
        f"{address}/v1/chat/completions", json={"messages": messages}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def test_a_simulated_user_says_the_scripted_lines(address: str, task: Task) -> None:
    messages = [{"role": "system", "content": PROMPT.format(instruction=task.instruction)}]
    for line in [task.opening, *task.replies, task.replies[-1]]:
        messages.append({"role": "user", "content": GREETING})
        assert ask(address, messages) == line
        messages.append({"role": "assistant", "content": line})


@pytest.mark.parametrize("messages", [[], [{}], [{"role": "system", "content": None}], [HELLO]])
def test_odd_conversations_get_a_polite_answer(
    address: str, messages: list[dict[str, Any]]
) -> None:
    assert ask(address, messages) == POLITE

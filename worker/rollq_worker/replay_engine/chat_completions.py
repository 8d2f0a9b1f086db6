"""POST /v1/chat/completions: the scripted user's lines for a user simulator, and summaries of
conversations.

The system prompt names the task of the user, or asks for a summary. It knows no token ids.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence

from rollq.env import Action
from rollq.images import text_of
from rollq.job import Json
from rollq_worker.context.summary import MODEL_PROMPT
from rollq_worker.protocols import ReadTurn
from rollq_worker.replay_engine.http_bodies import bad_body
from rollq_worker.replay_engine.policy.ground_truth import POLITE
from rollq_worker.replay_engine.policy.task_progress import TaskIndex, TaskProgress
from rollq_worker.tokens.tokenizer import Tokenizer


def complete(
    body: Mapping[str, Json],
    tasks: TaskIndex,
    tokenizer: Tokenizer,
    version: str,
) -> dict[str, Json]:
    """The reply to a request. `version` is the weight version. Raises HttpError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise bad_body("messages", "Input should be a valid list")
    content = next_line(messages, tasks)
    texts = map(_text, messages)
    prompt = sum(map(len, tokenizer.encode_plain(*texts)))
    count = len(tokenizer.encode_plain(content)[0])
    message = {"role": "assistant", "content": content, "reasoning_content": None}
    return {
        "id": uuid.uuid4().hex,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": count,
            "total_tokens": prompt + count,
        },
        "metadata": {
            "weight_version": version,
            "weight_versions": [{"version": version, "start": 0, "end": count}],
        },
    }


def next_line(messages: Sequence[Mapping[str, Json]], tasks: TaskIndex) -> str:
    """The user's k-th line for the k-th request; its last one after that. A polite word where no
    task is known.
    """
    if [_text(message) for message in messages[:1]] == [MODEL_PROMPT]:
        return summary(_text(messages[-1]), tasks)
    replies_so_far = sum(message.get("role") == "assistant" for message in messages)
    for message in messages:
        if message.get("role") != "system":
            continue
        task = tasks.by_instruction(_text(message))
        if task:
            lines = [task.opening, *task.replies]
            line: str = lines[min(replies_so_far, len(task.replies))]
            return line
    return POLITE


def summary(conversation: str, tasks: TaskIndex) -> str:
    """A summary of a conversation, one message of OpenAI's form a line."""
    progress = TaskProgress()
    for line in conversation.split("\n"):
        message = json.loads(line)
        if message["role"] == "system":
            progress = progress.after_system(message["content"])
        elif message["role"] == "user":
            progress = progress.after_user(text_of(message["content"]), tasks)
        elif message["role"] == "assistant":
            made = [call["function"] for call in message.get("tool_calls", ())]
            calls = [Action(call["name"], json.loads(call["arguments"])) for call in made]
            progress = progress.after_turn(ReadTurn(message["content"], calls))
    return progress.summary


def _text(message: Mapping[str, Json]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""

"""POST /v1/chat/completions: the scripted user's lines for a user simulator, the ground truth for an assistant.

The messages say which of the two is asked for, and the task. It knows no token ids.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollq.env import RESPOND, Action
from rollq.job import Json
from rollq_worker.protocols import ReadTurn
from rollq_worker.replay_engine.ground_truth import POLITE
from rollq_worker.replay_engine.http_bodies import bad_body
from rollq_worker.replay_engine.task_progress import TaskIndex, TaskProgress
from rollq_worker.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatReply:
    content: str
    calls: Sequence[Action] = field(default=())

    def message(self) -> dict[str, Json]:
        message: dict[str, Json] = {"role": "assistant", "content": self.content, "reasoning_content": None}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{index}",
                    "index": index,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
                }
                for index, call in enumerate(self.calls)
            ]
        return message


def complete(body: Mapping[str, Json], tasks: TaskIndex, tokenizer: Tokenizer, version: str) -> dict[str, Json]:
    """The reply to a request. `version` is the weight version. Raises HttpError."""
    messages = body.get("messages")
    if messages is None:
        raise bad_body("messages", "Field required")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise bad_body("messages", "Input should be a valid list")
    reply = chat_reply(messages, tasks)
    message = reply.message()
    finish = "tool_calls" if reply.calls else "stop"
    sampled = tokenizer.encode_plain(reply.content)[0]
    longest = body.get("max_completion_tokens") or body.get("max_tokens")
    if isinstance(longest, int) and len(sampled) > longest:
        sampled, finish = sampled[:longest], "length"
        message["content"] = tokenizer.decode(sampled)
    prompt, count = sum(map(len, tokenizer.encode_plain(*map(_text, messages)))), len(sampled)
    return {
        "id": uuid.uuid4().hex,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count},
        "metadata": {"weight_version": version, "weight_versions": [{"version": version, "start": 0, "end": count}]},
    }


def chat_reply(messages: Sequence[Mapping[str, Json]], tasks: TaskIndex) -> ChatReply:
    for message in messages:
        if message.get("role") == "system" and (task := tasks.by_instruction(_text(message))):
            said = sum(message.get("role") == "assistant" for message in messages)
            return ChatReply([task.opening, *task.replies][min(said, len(task.replies))])
    progress = TaskProgress()
    for message in messages:
        if message.get("role") == "user":
            progress = progress.after_user(_text(message), tasks)
        elif message.get("role") == "assistant":
            progress = progress.after_turn(ReadTurn(_text(message), _calls(message)))
    move = progress.next_move
    if move is None:
        return ChatReply(POLITE)
    return ChatReply(str(move.arguments["content"])) if move.name == RESPOND else ChatReply("", (move,))


def _text(message: Mapping[str, Json]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _calls(message: Mapping[str, Json]) -> tuple[Action, ...]:
    calls = message.get("tool_calls")
    return tuple(call for one in calls if (call := _call(one))) if isinstance(calls, list) else ()


def _call(call: Json) -> Action | None:
    try:
        arguments = call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return Action(call["function"]["name"], arguments) if isinstance(arguments, dict) else None
    except (KeyError, TypeError, ValueError):
        return None

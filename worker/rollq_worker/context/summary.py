"""A summary in place of all turns: by the policy itself, or by another model.

The new trace begins with the first prompt. The summary is appended to its user message, because
many chat templates accept no two user messages in a row. This module knows no endpoint.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollq.events import Message

_SUMMARY = (
    "what was asked, what is known and was done so far (names, numbers and ids exactly), what was "
    "said last, and what is left to do"
)
POLICY_REQUEST = (
    "The conversation has become too long. Of all of it, you will only see its beginning and what "
    "you write now. Take no action now. Write a summary in plain text, with which you can go on: "
    f"{_SUMMARY}."
)
"""The request for a summary, a user message."""
MODEL_PROMPT = (
    "You get a conversation of a user and an assistant with tools, one message a line, as JSON. Of "
    "all of it, the assistant will only see its beginning and what you write. Write a summary in "
    f"plain text, with which it can go on: {_SUMMARY}."
)
"""The system prompt of another model, before it gets the conversation."""
HEADING = "\n\nSummary of the conversation so far:\n"
"""The text between the user's first message and the summary."""


def with_summary(opening: Sequence[Message], summary: str) -> list[Message]:
    """The first prompt, with the summary at the end of its last message."""
    *before, user_message = opening
    content = user_message["content"]
    text = HEADING + summary.strip()
    if isinstance(content, str):
        content += text
    else:
        content = [*content, {"type": "text", "text": text}]
    return [*before, {**user_message, "content": content}]


@dataclass(frozen=True, slots=True)
class OwnSummary:
    """Implements rollq.env.ContextHook, for a summary that the policy writes in its own turn."""

    over: int
    """A trace with more tokens than this is summarized."""
    request: str

    def request_for(self, tokens: int) -> str:
        """The request for a summary; "" while none is needed."""
        return self.request if tokens > self.over else ""

    def __call__(
        self, opening: Sequence[Message], messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        """Replaces a conversation that ends with the policy's summary: a turn without a reply."""
        last = messages[-1]
        if last["role"] != "assistant":
            return None
        return with_summary(opening, last["content"])


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Implements rollq.env.ContextHook, with a summary by another model."""

    over: int
    prompt: str
    """The model's system prompt."""
    model: Callable[[Sequence[Mapping[str, str]]], str]
    """Answers a conversation."""

    def __call__(
        self, opening: Sequence[Message], messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        if tokens <= self.over:
            return None
        lines = [json.dumps(each, ensure_ascii=False) for each in messages]
        request = [
            {"role": "system", "content": self.prompt},
            {"role": "user", "content": "\n".join(lines)},
        ]
        return with_summary(opening, self.model(request))

"""A summary in place of all turns: by the policy itself, or by another model.

The new trace begins with the first prompt, and the summary stands in its user's message, because
many chat templates take no two messages of the user in a row. It knows no endpoint.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollq.events import Message

_SUMMARY = (
    "what was asked, what is known and was done so far (names, numbers and ids exactly), "
    "what was said last, and what"
    " is left to do"
)
ASK = (
    "The conversation has become too long. Of all of it, you will only see its beginning "
    "and what you write now."
    f" Take no action now. Write a summary in plain text, with which you can go on: {_SUMMARY}."
)
"""The question to the policy."""
ASK_MODEL = (
    "You get a conversation of a user and an assistant with tools, one message a line, "
    "as JSON. Of all of it, the"
    " assistant will only see its beginning and what you write. Write a summary in plain "
    "text, with which it can go on:"
    f" {_SUMMARY}."
)
"""The system prompt of another model, before it gets the conversation."""
HEADING = "\n\nSummary of the conversation so far:\n"
"""The text between the user's first message and the summary."""


def with_summary(opening: Sequence[Message], summary: str) -> list[Message]:
    """The first prompt with a summary of what followed it."""
    *before, first = opening
    content = first["content"]
    text = HEADING + summary.strip()
    if isinstance(content, str):
        content += text
    else:
        content = [*content, {"type": "text", "text": text}]
    return [*before, {**first, "content": content}]


@dataclass(frozen=True, slots=True)
class OwnSummary:
    """Implements rollq.env.ContextHook, for a summary that the policy writes in a turn
    of its own.
    """

    over: int
    """Most tokens of a trace of which no summary is asked."""
    ask: str

    def asks(self, tokens: int) -> str:
        return self.ask if tokens > self.over else ""

    def __call__(
        self, opening: Sequence[Message], messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        last = messages[-1]
        return with_summary(opening, last["content"]) if last["role"] == "assistant" else None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Implements rollq.env.ContextHook, with a summary by another model."""

    over: int
    ask: str
    model: Callable[[Sequence[Mapping[str, str]]], str]
    """Answers a conversation."""

    def __call__(
        self, opening: Sequence[Message], messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        if tokens <= self.over:
            return None
        lines = [json.dumps(each, ensure_ascii=False) for each in messages]
        request = [
            {"role": "system", "content": self.ask},
            {"role": "user", "content": "\n".join(lines)},
        ]
        return with_summary(opening, self.model(request))

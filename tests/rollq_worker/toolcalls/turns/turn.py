"""A sampled turn with what is read from it, and the tools that it may call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollq.env import Action

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {
                    "s": {"type": "string"},
                    "n": {"type": "integer"},
                    "x": {"type": "number"},
                    "b": {"type": "boolean"},
                    "o": {"type": "object"},
                    "l": {"type": "array"},
                    "e": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
        },
    }
    for name in ("f", "g")
]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A sampled turn and what is read from it."""

    format: str
    name: str
    text: str
    calls: list[Action] = field(default_factory=list)
    content: str = ""
    error: str = ""
    """Part of what the policy is told."""
    reasoning: str = ""
    unclosed: bool = False
    """Whether the last call is taken without its end tag."""
    sglang: str = ""
    """How SGLang's parser differs, on purpose of ours; "": it reads the same."""

    @property
    def id(self) -> str:
        return f"{self.format}: {self.name}"


def turns_of(format: str) -> Callable[..., Turn]:
    """Makes turns of a format from a name, a text and the other fields by name."""
    return lambda name, text, **read: Turn(format=format, name=name, text=text, **read)


def f(**arguments: Any) -> Action:
    return Action("f", arguments)


FULL = {"s": 'a "b"\nc', "n": 2, "x": 1.5, "b": True, "o": {"k": [1, None]}, "l": ["a", 2]}
LOST = "a call that cannot be read vanishes with its text"
UNKNOWN = "a call of an unknown tool vanishes with its text"
STRICT = "the call vanishes"
LENIENT = "a faulty call is mended and taken"
TYPES = "a value that does not fit its type becomes another value"
FRAMED = "without a call the framing of the messages stays in the text"
REASONING = "reasoning is text for the user"
TEXT = "a call that cannot be read is text for the user"

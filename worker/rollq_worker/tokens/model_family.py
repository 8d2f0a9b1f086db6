"""A model family: facts about a model that its chat template does not tell.

The records of families are data in `known_families`. `family_detection` finds the one of a
template.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollq.events import Message
from rollq.job import Json

REASONING = "reasoning_content"
"""The key of a message that holds reasoning, for most templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsPrompt:
    """Text for the system prompt that lists the tools. Control tokens in it stay control tokens."""

    head: str
    tool: str
    """Text of each tool, with the fields `name`, `description`, `parameters` (the schema as JSON)
    and `function` (all of these as one JSON object).
    """
    tail: str
    between: str = ""
    """Text between two tools."""

    def write(self, tools: Sequence[Json]) -> str:
        """The text for these tools."""
        listed = [
            self.tool.format(
                name=function["name"],
                description=function.get("description", ""),
                parameters=json.dumps(function.get("parameters", {}), ensure_ascii=False),
                function=json.dumps(function, ensure_ascii=False),
            )
            for function in (tool["function"] for tool in tools)
        ]
        return self.head + self.between.join(listed) + self.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class CallText:
    """The text of calls and results for a template that has no place for them."""

    begin: str
    between: str
    end: str
    """The text before the calls of a turn, between two of them, and behind them."""
    call: str
    """One call, with the fields `name`, `arguments` (as JSON) and `keywords` (as in a call of
    Python).
    """
    after_words: str = "\n"
    """Text between the words of a turn and its calls."""
    result: tuple[str, str] | None = None
    """The text before and behind each result, in a user's message; None if the template takes
    results.
    """
    prompt_mark: str = ""
    """A text of the template's own in each prompt with tools, by which the family is known; "" if
    the template lists no tools.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models that end a turn and write a tool call in one way."""

    name: str
    stops: tuple[str, ...]
    """The tokens that end a sampled turn; the template writes the first one at the end of a turn.
    """
    parser: str
    """A name in `toolcalls.readers()`, or one that `readers_for` makes for a vocabulary."""
    template_ends: tuple[str, ...] = ()
    """End tokens that the template writes but the model never samples."""
    header_stops: Mapping[str, str] = field(default_factory=dict)
    """Stop tokens that are also the next message's header, with the role in that header."""
    reply_roles: frozenset[str] = frozenset({"tool", "user"})
    """The roles that may answer a turn."""
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Arguments for the template, beside messages and tools."""
    call_id_format: str = ""
    """Form of the id of a call that the template shows, made of `name` and `n`, the number of the
    call; "" if any id is accepted.
    """
    call_id_pattern: str = ""
    """Regular expression for the ids that the template accepts."""
    call_mark: str = ""
    """A text that is in every rendered call; it tells apart two families with one reader."""
    tools_prompt: ToolsPrompt | None = None
    """The text that lists the tools, for a template that does not."""
    call_text: CallText | None = None
    """The text of calls in the conversation, for a template that leaves them out."""
    system_in_user: bool = False
    """True if the system prompt stands before the first user's message, because the template takes
    none.
    """
    one_system: bool = False
    """True if the template refuses or leaves out a system message behind another message."""
    reasoning_key: str = REASONING
    """The key of a message under which the template takes reasoning."""
    wants_reasoning: bool = False
    """True if the template refuses a turn without a field for reasoning."""
    text_arguments: bool = False
    """True if the template takes a call's arguments as a string of JSON."""
    one_call: bool = False
    """True if the template writes only the first call of a turn, and names that one's tool at each
    result.
    """


def example_call(name: str, arguments: Json = None, id: str = "call00000") -> Message:
    """An assistant message with one tool call; some templates want ids of nine characters."""
    function = {"name": name, "arguments": arguments or {}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }

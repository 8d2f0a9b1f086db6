"""Model families as data: what a chat template does not say about itself.

A family is one record. It is found by how the template writes a tool call, not by a model's name. Everything else that
differs between models is read off the template by rendering.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollq.errors import JobFailure
from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How models of one kind end a turn and write a tool call."""

    name: str
    stops: tuple[str, ...]
    """The tokens that end a sampled turn; the first one is what the template writes there."""
    call: str
    """Regular expression: a call of `probe` with the argument `x` = "1" as the template writes it."""
    parser: str
    """A name in `toolcalls.PARSERS`."""
    roles: frozenset[str] = frozenset({"tool", "user"})
    """Who may answer a turn."""
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Arguments for the template."""


FAMILIES = (
    Family(
        name="chatml-hermes",  # Qwen2.5, Qwen3 (JSON calls), Hermes, the bundled template
        stops=("<|im_end|>", "<|endoftext|>"),
        call=r'<tool_call>\s*\{"name": ?"probe", ?"arguments": ?\{"x": ?"1"\}\}\s*</tool_call>\s*<\|im_end\|>',
        parser="hermes",
    ),
)


def probe_call(name: str = "probe", arguments: Mapping[str, Json] | None = None, id: str = "call00000") -> Message:
    """An assistant message with one tool call, in the form templates take (some want ids of nine characters)."""
    function = {"name": name, "arguments": dict(arguments or {})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}


def family_of(tokenizer: Tokenizer) -> Family:
    """The family of a tokenizer and its template. Raises JobFailure for one that no record describes."""
    x = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "probe", "description": "probe", "parameters": x}}
    text = tokenizer.render([{"role": "user", "content": "probe"}, probe_call("probe", {"x": "1"})], [tool])
    for family in FAMILIES:
        if family.stops[0] in tokenizer.added_tokens and re.search(family.call, text):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise JobFailure(
        f"the chat template of {tokenizer.name} writes tool calls in no format that rollq reads ({known}); "
        "use a model of these families, or add its record to rollq_worker/family.py"
    )

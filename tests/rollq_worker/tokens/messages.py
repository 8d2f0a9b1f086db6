"""Tools and messages that the tests of this room share."""

from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} it.",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": "What."}},
            },
        },
    }
    for name in ("get_order", "think_hard")
]
OPENING = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is #W123?"},
]
REPLY = {"role": "assistant", "content": "It is on its way."}
USER = {"role": "user", "content": "Thanks."}


def called(*ids: str, name: str = "get_order") -> dict[str, Any]:
    """A turn with a call for each id."""
    function = {"name": name, "arguments": '{"x": "#W123"}'}
    calls = [{"id": id, "type": "function", "function": function} for id in ids or ("call_0",)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(content: str, id: str = "call_0") -> dict[str, Any]:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": id, "content": content}

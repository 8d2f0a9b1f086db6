"""The tool that an unreadable call names."""

import pytest

from rollq_worker.agents.unreadable_calls import TEXT, unreadable_call
from rollq_worker.protocols import ReadTurn


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ('<tool_call>{"name": "look-up", "arguments": {"a"', "look-up"),
        ('I look, and then read: {"name": "read", "arguments": {"a"', "read"),
        ("{name: look, arguments: {", "look"),
        ("<function=look_away>", None),
    ],
)
def test_it_is_the_one_in_the_calls_markup(said: str, name: str | None) -> None:
    tools = [{"function": {"name": tool}} for tool in ("look", "look-up", "read")]
    call = unreadable_call(ReadTurn(said, errors=["not JSON"]), tools)
    assert (call and (call.name, call.arguments)) == (name and (name, {TEXT: said}))

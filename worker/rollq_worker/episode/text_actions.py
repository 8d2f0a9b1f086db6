"""Actions written as text, as tau-bench's act and react agents write them: a line `Action:` and a
JSON object.

The invariant: `read_action` gets back what `write_action` wrote. Nothing is repaired, because a
repaired action would be trained on. It knows texts only, neither tokens nor the tools that exist.
"""

import json
import re
from collections.abc import Sequence
from enum import StrEnum

from rollq.env import RESPOND, Action
from rollq.job import Json
from rollq_worker.text.strict_json import NotJson, skip, strict_json

RESULT = "API output: "
"""Beginning of a tool's result. It is a user's message, because the turn made no tool call."""
_MARK = re.compile(r"^[ \t]*Action:", re.MULTILINE)
_FORM = 'End the turn with a line "Action:" and one JSON object: {"name": ..., "arguments": {...}}.'
_THOUGHT = "The next step follows from the policy and from what is known so far."


class TextForm(StrEnum):
    """The text before the action of a turn."""

    ACT = "act"
    """Nothing."""
    REACT = "react"
    """A thought: `Thought:` and a line of reasoning, which is sampled and trained like the rest of
    the turn.
    """


def write_action(action: Action, form: TextForm, thought: str = _THOUGHT) -> str:
    """The turn that does this."""
    called = json.dumps(
        {"name": action.name, "arguments": dict(action.arguments)}, ensure_ascii=False
    )
    if form is TextForm.REACT:
        return f"Thought:\n{thought}\nAction:\n{called}"
    return f"Action:\n{called}"


def read_action(text: str) -> Action | str:
    """The action of a turn, or its errors in words for the policy. Of several actions it is the
    last one, as in tau-bench.
    """
    marks = list(_MARK.finditer(text))
    if not marks:
        return f'The turn has no line "Action:". {_FORM}'
    try:
        value, problem, end = strict_json(text, marks[-1].end())
    except NotJson as e:
        return f"The action is {e} {_FORM}"
    if problem:
        return problem
    if skip(text, end) != len(text):
        return f"Something follows the action. {_FORM}"
    return _action_of(value)


def _action_of(value: Json) -> Action | str:
    if not isinstance(value, dict):
        return f"The action is not a JSON object. {_FORM}"
    name = value.get("name")
    arguments = value.get("arguments")
    if not isinstance(name, str) or not name:
        return f'The action has no "name". {_FORM}'
    if not isinstance(arguments, dict):
        return f'The "arguments" of the action {name[:80]!r} are not a JSON object. {_FORM}'
    if name == RESPOND and not (
        set(arguments) == {"content"} and isinstance(arguments["content"], str)
    ):
        return f'The action {RESPOND!r} takes one argument, "content": the text for the user.'
    return Action(name, arguments)


_THOUGHT_RULE = (
    "The thought is one line: what follows from the conversation and the policy for your next "
    "step.\n"
)
_EXAMPLE_THOUGHT = "The user asks when the shop in Oslo opens, which I have to look up."
_EXAMPLE_CALL = Action("get_opening_hours", {"city": "Oslo"})
_EXAMPLE_REPLY = Action(RESPOND, {"content": "Our shop in Oslo opens at 9."})


def _instruction(form: TextForm) -> str:
    react = form is TextForm.REACT
    thought = "Thought:\n<one line of reasoning>\n" if react else ""
    return f"""# How to act
Each of your turns is one action, written in exactly this form:

{thought}Action:
{{"name": <a tool's name>, "arguments": <the tool's arguments, a JSON object>}}

{_THOUGHT_RULE if react else ""}The action is read by a program, so it must be valid JSON, \
and nothing may follow it.
Its result comes back in a message that begins with "{RESULT.strip()}".
The action "{RESPOND}" writes to the user. It is the only way to do so.
Use values that the user or a tool has given you, never made-up ones.

With a tool for opening hours, a turn could be:
{write_action(_EXAMPLE_CALL, form, _EXAMPLE_THOUGHT)}

And after its result:
{write_action(_EXAMPLE_REPLY, form, "I know the answer and can tell the user.")}

Help the user, and always follow the policy above."""


INSTRUCTIONS = {form: _instruction(form) for form in TextForm}
"""Part of the system prompt about the form of turns."""


def system_prompt(rules: str, tools: Sequence[Json], form: TextForm) -> str:
    """The environment's rules, the tools' schemas, and the form of turns."""
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"{rules}\n\n# Tools\n{schemas}\n\n{INSTRUCTIONS[form]}"


def form_of(prompt: str) -> TextForm | None:
    """The form for which a system prompt asks; None for tool calls of the model's own format."""
    return next((form for form in TextForm if INSTRUCTIONS[form] in prompt), None)

"""Calls that could not be read, as an agent program is given them. The program tells its policy
what is wrong, as it does with a call of any model.

OpenAI's dialects hand on the text as the arguments, which need not be valid JSON
(https://platform.openai.com/docs/api-reference/chat). Anthropic's input is an object, and its page
on fine-grained streaming has one with the text under INVALID_JSON. That is what the journal keeps.
"""

import json
import re
from collections.abc import Mapping, Sequence

from rollq.env import Action
from rollq.job import Json
from rollq_worker.protocols import ReadTurn
from rollq_worker.toolcalls.call_object import call_of

TEXT = "INVALID_JSON"
"""The only argument of an unreadable call: its text."""


def unreadable_call(read: ReadTurn, tools: Sequence[Json]) -> Action | None:
    """The call of a turn whose calls are all unreadable, if it names one of the tools."""
    if read.calls or not read.errors:
        return None
    names = "|".join(re.escape(tool["function"]["name"]) for tool in tools)
    # in a call's markup, rather than in the words before it
    for before in (r"(?<![\w\s-])", r"\b"):
        named = re.search(rf"{before}(?:{names})(?![\w-])", read.content) if names else None
        if named:
            return Action(named[0], {TEXT: read.content})
    return None


def arguments_of(call: Json) -> str:
    """The arguments of a call in OpenAI's dialects."""
    text = str(call["function"]["arguments"])
    if TEXT not in text:
        return text
    arguments = json.loads(text)
    return str(arguments[TEXT]) if list(arguments) == [TEXT] else text


def read_arguments(name: str, arguments: Mapping[str, Json] | str) -> Mapping[str, Json]:
    """The arguments with which a program calls a tool. They may be a call's text, in the form of
    either dialect. Raises NotACall, in words for the policy.
    """
    if not isinstance(arguments, str) and list(arguments) == [TEXT]:
        arguments = str(arguments[TEXT])
    if isinstance(arguments, str):
        return call_of({"name": name, "arguments": arguments}, "").arguments
    return arguments

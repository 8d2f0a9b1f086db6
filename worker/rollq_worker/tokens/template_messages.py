"""Turns messages in OpenAI's form into the form that chat templates take.

Arguments become objects, or strings for a template that wants those. Ids take the family's form,
and a tool's result carries its tool's name. It does not know templates or tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.model_family import REASONING, Family, example_call

ROLES = frozenset({"system", "user", "assistant", "tool"})
SHORT_REPLY: Message = {"role": "assistant", "content": "a"}
"""A turn without a call, in place of a real one."""


def for_template(messages: Sequence[Message], family: Family) -> list[Message]:
    """A copy of the conversation as a template takes it. Raises JobFailure for an unknown role."""
    shown: list[Message] = []
    called: dict[
        str, tuple[str, str]
    ] = {}  # by a call's id: the id that the template is shown, and the tool's name
    count = 0  # calls so far
    for message in one_call_a_turn(messages) if family.one_call else messages:
        role = message.get("role")
        if role not in ROLES:
            raise JobFailure(
                f"a message has the role {role!r}; there is {', '.join(sorted(ROLES))}"
            )
        copy = {key: value for key, value in message.items() if key != "tool_calls"}
        copy["content"] = message.get("content") or ""
        if calls := message.get("tool_calls"):
            copy["tool_calls"] = [_call(call, family, count + n) for n, call in enumerate(calls)]
            for old, new in zip(calls, copy["tool_calls"], strict=True):
                called[str(old.get("id"))] = new["id"], new["function"]["name"]
            count += len(calls)
        elif role == "tool":
            id, name = called.get(str(message.get("tool_call_id")), ("", ""))
            copy["tool_call_id"] = id or call_id(
                family, str(message.get("tool_call_id") or ""), "tool", count
            )
            if name:
                copy.setdefault("name", name)
        if family.reasoning_key != REASONING and (reasoning := copy.pop(REASONING, "")):
            if (
                family.one_call and "tool_calls" in copy and copy["content"]
            ):  # gpt-oss' template takes one or the other
                reasoning, copy["content"] = f"{reasoning}\n\n{copy['content']}", ""
            copy[family.reasoning_key] = reasoning
        shown.append(copy)
    return shown


def one_call_a_turn(messages: Sequence[Message]) -> list[Message]:
    """The conversation with a turn of its own for each call, followed by that call's result."""
    shown: list[Message] = []
    split: set[str] = set()  # calls whose results have been written
    for n, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            if message.get("role") != "tool" or message.get("tool_call_id") not in split:
                shown.append(message)
            continue
        split = {call["id"] for call in calls}
        for m, call in enumerate(calls):
            shown.append(
                {
                    **(message if m == 0 else {"role": "assistant", "content": ""}),
                    "tool_calls": [call],
                }
            )
            shown += [
                after
                for after in takewhile(lambda after: after.get("role") == "tool", messages[n + 1 :])
                if after.get("tool_call_id") == call["id"]
            ]
    return shown


def with_missing_calls(messages: Sequence[Message], tool: str) -> list[Message]:
    """The conversation with a made-up call of `tool` in each turn that called nothing but is
    answered by a tool.

    Such a turn could not be read, and the result says so. Some templates refuse or hide a result
    without a call.
    """
    shown: list[Message] = []
    for message, after in zip(messages, [*messages[1:], {}], strict=True):
        if (
            message.get("role") == "assistant"
            and not message.get("tool_calls")
            and after.get("role") == "tool"
        ):
            made_up = example_call(tool, id=str(after.get("tool_call_id") or "call00000"))
            message = {**message, "tool_calls": made_up["tool_calls"]}
        shown.append(message)
    return shown


def short_exchange(
    message: Message, replies: Sequence[Message], tool: str, keep_ids: bool = True
) -> list[Message]:
    """A short turn in place of `message`, and its `replies`.

    The short turn calls the same tools without arguments, or says one letter. Tool results need a
    call before them, so a turn without a call gets one of `tool`. Without `keep_ids` all turns have
    the same ids.
    """
    calls = message.get("tool_calls") or ()
    if not calls and replies[0].get("role") != "tool":
        return [SHORT_REPLY, *replies]
    named = [(str(call.get("id")), str(call["function"]["name"])) for call in calls]
    named = named or [(str(replies[0].get("tool_call_id") or "call00000"), tool)]
    ids = {id: id if keep_ids else f"call{n:05}" for n, (id, _) in enumerate(named)}
    short = [example_call(name, id=ids[id])["tool_calls"][0] for id, name in named]
    renamed = [
        {**reply, "tool_call_id": ids.get(str(reply["tool_call_id"]), reply["tool_call_id"])}
        if "tool_call_id" in reply
        else reply
        for reply in replies
    ]
    return [{"role": "assistant", "content": "", "tool_calls": short}, *renamed]


def call_id(family: Family, id: str, name: str, n: int) -> str:
    """The id of the n-th call, a call of the tool `name`, in the family's form if it has one."""
    if not family.call_id_format or re.fullmatch(family.call_id_pattern, id):
        return id
    return family.call_id_format.format(name=name, n=n)


def _call(call: Json, family: Family, n: int) -> Json:
    function = call["function"]
    arguments = _arguments(function)
    if family.text_arguments and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    id = call_id(family, str(call.get("id") or ""), str(function["name"]), n)
    return {**call, "id": id, "function": {**function, "arguments": arguments}}


def _arguments(function: Mapping[str, Json]) -> Json:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments

"""Messages in OpenAI's form made into what chat templates take.

Arguments become objects (or strings, for a template that wants them so), ids the family's own, and a tool's result
carries its tool's name. It does not know templates or tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence

from rollq.errors import JobFailure
from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.tokens.model_family import Family, probe_call

ROLES = frozenset({"system", "user", "assistant", "tool"})


def for_template(messages: Sequence[Message], family: Family) -> list[Message]:
    """The same conversation as a template takes it; `messages` stay as they are. Raises JobFailure (unknown role)."""
    shown: list[Message] = []
    names: dict[str, tuple[str, str]] = {}  # by a call's id: the id that the template is shown, and the tool's name
    count = 0  # calls so far
    for message in messages:
        role = message.get("role")
        if role not in ROLES:
            raise JobFailure(f"a message has the role {role!r}; there is {', '.join(sorted(ROLES))}")
        copy = {key: value for key, value in message.items() if key != "tool_calls"}
        copy["content"] = message.get("content") or ""
        if calls := message.get("tool_calls"):
            copy["tool_calls"] = [_call(call, family, count + n) for n, call in enumerate(calls)]
            pairs = zip(calls, copy["tool_calls"], strict=True)
            names |= {str(old.get("id")): (new["id"], new["function"]["name"]) for old, new in pairs}
            count += len(calls)
        elif role == "tool":
            id, name = names.get(str(message.get("tool_call_id")), ("", ""))
            copy["tool_call_id"] = id or call_id(family, str(message.get("tool_call_id") or ""), "tool", count)
            if name:
                copy.setdefault("name", name)
        if family.thought and (thought := copy.pop("reasoning_content", "")):
            if "tool_calls" in copy and copy["content"]:  # its template takes one or the other
                thought, copy["content"] = f"{thought}\n\n{copy['content']}", ""
            copy[family.thought] = thought
        shown.append(copy)
    return shown


def with_calls(messages: Sequence[Message], tool: str) -> list[Message]:
    """The conversation with a call of `tool` made up in each turn that a tool's result answers though it called none.

    Such a turn could not be read, and the result says so; some templates refuse a result without a call, or hide it.
    """
    shown: list[Message] = []
    for message, after in zip(messages, [*messages[1:], {}], strict=True):
        if message.get("role") == "assistant" and not message.get("tool_calls") and after.get("role") == "tool":
            made_up = probe_call(tool, {}, str(after.get("tool_call_id") or "call00000"))
            message = {**message, "tool_calls": made_up["tool_calls"]}
        shown.append(message)
    return shown


def stand_in(message: Message, replies: Sequence[Message], tool: str, keep_ids: bool = True) -> list[Message]:
    """A short turn to put in front of `replies` in place of `message`, and the replies.

    It calls the same tools without arguments, or says a word. Tool results want a call in front of them: a turn without
    one, because it could not be read, has called `tool`. `keep_ids` false: ids that are the same for all turns.
    """
    calls = message.get("tool_calls") or ()
    if not calls and replies[0].get("role") != "tool":
        return [{"role": "assistant", "content": "a"}, *replies]
    named = [(str(call.get("id")), str(call["function"]["name"])) for call in calls]
    named = named or [(str(replies[0].get("tool_call_id") or "call00000"), tool)]
    ids = {id: id if keep_ids else f"call{n:05}" for n, (id, _) in enumerate(named)}
    short = [probe_call(name, {}, ids[id])["tool_calls"][0] for id, name in named]
    renamed = [
        {**reply, "tool_call_id": ids.get(str(reply["tool_call_id"]), reply["tool_call_id"])}
        if "tool_call_id" in reply
        else reply
        for reply in replies
    ]
    return [{"role": "assistant", "content": "", "tool_calls": short}, *renamed]


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


def call_id(family: Family, id: str, name: str, n: int) -> str:
    """The id of the n-th call, in the family's form where it has one."""
    if not family.call_id or re.fullmatch(family.call_ids, id):
        return id
    return family.call_id.format(name=name, n=n)

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
    calls = _ShownCalls(family)
    for message in one_call_a_turn(messages) if family.one_call else messages:
        role = message.get("role")
        if role not in ROLES:
            raise JobFailure(
                f"a message has the role {role!r}; there is {', '.join(sorted(ROLES))}"
            )
        copy = {key: value for key, value in message.items() if key != "tool_calls"}
        copy["content"] = message.get("content") or ""
        if message.get("tool_calls"):
            copy["tool_calls"] = calls.show(message["tool_calls"])
        elif role == "tool":
            calls.name_result(copy)
        if family.wants_reasoning and role == "assistant":
            copy.setdefault(REASONING, "")
        if family.reasoning_key != REASONING:
            _move_reasoning(copy, family)
        shown.append(copy)
    return shown


class _ShownCalls:
    """The calls of a conversation as its template takes them."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._count = 0
        self._by_id: dict[str, tuple[str, str]] = {}
        """Id for the template and name of the tool by a call's id."""

    def show(self, calls: Sequence[Json]) -> list[Json]:
        """The calls of a turn for the template."""
        shown = [_call(call, self._family, self._count + n) for n, call in enumerate(calls)]
        for call, new in zip(calls, shown, strict=True):
            self._by_id[str(call.get("id"))] = new["id"], new["function"]["name"]
        self._count += len(calls)
        return shown

    def name_result(self, message: Message) -> None:
        """Gives a tool's result the template's id of its call, and the tool's name."""
        own_id = str(message.get("tool_call_id") or "")
        id, name = self._by_id.get(own_id, ("", ""))
        message["tool_call_id"] = id or call_id(self._family, own_id, "tool", self._count)
        if name:
            message.setdefault("name", name)


def _move_reasoning(message: Message, family: Family) -> None:
    """Moves reasoning under the family's key."""
    reasoning = message.pop(REASONING, "")
    if not reasoning:
        return
    takes_one = family.one_call and "tool_calls" in message  # gpt-oss: reasoning or words
    if takes_one and message["content"]:
        reasoning = f"{reasoning}\n\n{message['content']}"
        message["content"] = ""
    message[family.reasoning_key] = reasoning


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
        results = list(takewhile(lambda after: after.get("role") == "tool", messages[n + 1 :]))
        turn = message
        for call in calls:
            shown.append({**turn, "tool_calls": [call]})
            shown += [result for result in results if result.get("tool_call_id") == call["id"]]
            turn = {"role": "assistant", "content": ""}
    return shown


def with_missing_calls(messages: Sequence[Message], tool: str) -> list[Message]:
    """The conversation with a made-up call of `tool` in each turn that called nothing but is
    answered by a tool.

    Such a turn could not be read, and the result says so. Some templates refuse or hide a result
    without a call.
    """
    shown: list[Message] = []
    for message, after in zip(messages, [*messages[1:], {}], strict=True):
        calls_nothing = message.get("role") == "assistant" and not message.get("tool_calls")
        if calls_nothing and after.get("role") == "tool":
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
    names = {str(call.get("id")): str(call["function"]["name"]) for call in calls}
    if not names:
        names = {str(replies[0].get("tool_call_id") or "call00000"): tool}
    ids = {id: id if keep_ids else f"call{n:05}" for n, id in enumerate(names)}
    short = [example_call(name, id=ids[id])["tool_calls"][0] for id, name in names.items()]
    turn: Message = {"role": "assistant", "content": "", "tool_calls": short}
    exchange = [turn]
    for reply in replies:
        if "tool_call_id" in reply:
            own_id = reply["tool_call_id"]
            reply = {**reply, "tool_call_id": ids.get(str(own_id), own_id)}
        exchange.append(reply)
    return exchange


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
    except (ValueError, RecursionError):
        return arguments

"""Turns messages in OpenAI's form into the form that chat templates take.

Arguments become objects, or strings for a template that wants those. Ids take the family's form,
and a tool's result carries its tool's name.

Roles and calls that a template lacks become text of the messages that it takes. System messages at
the beginning become one. A later one, or a system prompt, goes into a user's message. Calls become
words of the turn, and results a user's message. Foreign text is hidden already, so that control
tokens of the calls stay control tokens. It does not know templates or tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile

from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.model_family import REASONING, CallText, Family, example_call

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
    split: set[str] = set()  # calls of one turn whose results have been written
    for n, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            if calls:
                split = set()  # a later call may have the same id
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
    """The arguments of a call; "" and null mean none."""
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {} if arguments is None or arguments == "" else arguments


def in_known_roles(messages: Sequence[Message], family: Family) -> list[Message]:
    """The conversation in the roles that the family's template takes."""
    shown = list(messages)
    if family.call_text is not None:
        shown = _with_written_calls(shown, family.call_text)
    if family.one_system:
        shown = _with_one_system(shown)
    first_roles = [message["role"] for message in shown[:2]]
    if family.system_in_user and first_roles == ["system", "user"]:
        shown = [{**_joined(*shown[:2]), "role": "user"}, *shown[2:]]
    return shown


def _with_one_system(messages: Sequence[Message]) -> list[Message]:
    """Joins the system messages at the beginning. Each later one joins the user's message behind it
    or before it, or is a user's message itself.
    """
    shown: list[Message] = []
    pending: Message | None = None
    for message in messages:
        if message["role"] != "system":
            if pending is not None and message["role"] == "user":
                message = _joined(pending, message)
            elif pending is not None:
                shown.append(pending)
            pending = None
            shown.append(message)
        elif all(before["role"] == "system" for before in shown):
            shown = [_joined(*shown, message)]
        elif pending is not None:
            pending = _joined(pending, message)
        elif shown[-1]["role"] == "user":
            shown[-1] = _joined(shown[-1], message)
        else:
            pending = {**message, "role": "user"}
    return shown if pending is None else [*shown, pending]


def _joined(*messages: Message) -> Message:
    """One message with the content of all, in the role of the first."""
    contents = [message["content"] for message in messages]
    if any(isinstance(content, list) for content in contents):
        return {
            **messages[0],
            "content": [part for content in contents for part in _parts(content)],
        }
    return {**messages[0], "content": "\n\n".join(filter(None, contents))}


def _parts(content: str | list[Json]) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def write_calls(calls: Sequence[Json], form: CallText) -> str:
    """The calls of a turn, in OpenAI's form with arguments as objects, as text. Raises JobFailure
    for other arguments.
    """
    return form.begin + form.between.join(_write_call(call, form) for call in calls) + form.end


def _write_call(call: Json, form: CallText) -> str:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        raise JobFailure(
            f"a call of {function['name']!r:.80} has arguments that are not an object: "
            f"{arguments!r:.80}"
        )
    keywords = [f"{key}={_python(value)}" for key, value in arguments.items()]
    return form.call.format(
        name=function["name"],
        arguments=json.dumps(arguments, ensure_ascii=False),
        keywords=", ".join(keywords),
    )


def _with_written_calls(messages: Sequence[Message], form: CallText) -> list[Message]:
    shown: list[Message] = []
    after_tool = False
    for message in messages:
        is_result = message["role"] == "tool" and form.result is not None
        if calls := message.get("tool_calls"):
            words = filter(None, (message["content"], write_calls(calls, form)))
            message = {key: value for key, value in message.items() if key != "tool_calls"}
            message["content"] = form.after_words.join(words)
        elif is_result and form.result is not None:
            message = {
                "role": "user",
                "content": f"{form.result[0]}{message['content']}{form.result[1]}",
            }
            # one message for all results, because such templates want users and turns to alternate
            if after_tool:
                message["content"] = f"{shown.pop()['content']}\n{message['content']}"
        after_tool = is_result
        shown.append(message)
    return shown


def _python(value: Json) -> str:
    """A value as Python writes it, with strings in double quotes."""
    if isinstance(value, dict):
        items = [f"{_python(key)}: {_python(item)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)

"""Writes roles and calls that a chat template lacks as text of the messages that it takes.

System messages at the beginning become one. A later one, or a system prompt, goes into a user's
message. Calls become words of the turn, and results a user's message. It works on messages whose
foreign text is hidden already, so that control tokens of the calls stay control tokens. It does not
know templates or tokens.
"""

import json
from collections.abc import Sequence

from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.model_family import CallText, Family


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
    """The calls of a turn, in OpenAI's form with arguments as objects, as text."""
    return form.begin + form.between.join(_write_call(call, form) for call in calls) + form.end


def _write_call(call: Json, form: CallText) -> str:
    function = call["function"]
    arguments = function["arguments"]
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

"""What may vary in a turn's answer or in a first prompt while its shape stays the same: contents and ids of calls.

Everything else is the key of the shape. Messages with anything unusual have no shape. It does not know templates.
"""

import marshal
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_

from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.model_family import Family

_NO_ID = -1
"""In place of the number of a reply's call, where it answers none."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9_.:/-]{1,40}")
"""Ids that every template is taken to write as they are, where it does so with an id of this length and these signs."""
_CONTENT, _RESULT = {"role", "content"}, {"role", "content", "tool_call_id"}
_Kind = tuple[tuple[str, int, bool], ...]
"""For each message its role, the number of the call that it answers, and whether it says anything."""


@dataclass(frozen=True, slots=True)
class CallIds:
    """How a template shows the ids of calls."""

    family: Family
    shown: bool
    counted: bool
    """The template makes ids up by counting, and rollq puts the right ones in their place."""

    def accepts(self, id: str, name: str) -> bool:
        """Whether an id of a call of the tool `name` stays as it is."""
        form = self.family.call_id_format
        if not form:
            return _PLAIN_ID.fullmatch(id) is not None
        if self.counted or "{name}" in form:
            number = re.search(r"\d+$", id)
            return number is not None and id == form.format(name=name, n=int(number[0]))
        return re.fullmatch(self.family.call_id_pattern, id) is not None

    def examples(self, names: Sequence[str]) -> list[list[str]]:
        """Rows of ids for calls of these tools. Those of the first row occur nowhere else."""
        numbers = [secrets.randbelow(9 * 10**8) + 10**8 for _ in names], range(7, 7 + len(names)), range(98, 998)
        form = self.family.call_id_format or "{n}"
        rows = [[form.format(name=name, n=n) for name, n in zip(names, row, strict=False)] for row in numbers]
        return rows if self.family.call_id_format else [*rows, [f"call_{n:026}-Ab.c:d/e" for n in range(len(names))]]


@dataclass(frozen=True, slots=True)
class Varying:
    """The parts of one answer or prompt."""

    key: tuple[object, ...]
    kind: _Kind
    contents: Sequence[str]
    """Those of the messages that say anything."""
    ids: Sequence[str] = ()
    """The ids of the turn's calls, where the template shows them."""
    names: Sequence[str] = ()
    """The names of the tools called, one for each of `ids`."""


def of_answer(message: Message, replies: Sequence[Message], call_ids: CallIds) -> Varying | None:
    """The parts of a turn's answer; None for one that has no shape."""
    calls = message.get("tool_calls") or ()
    names = [str(call["function"]["name"]) for call in calls]
    ids = [str(call.get("id")) for call in calls]
    if not calls and replies[0]["role"] == "tool":  # its call could not be read
        names, ids = [""], [str(replies[0].get("tool_call_id"))]
    if len(ids) > 1 and len(set(ids)) < len(ids):
        return None
    kind: list[tuple[str, int, bool]] = []
    contents: list[str] = []
    for reply in replies:
        content, id = reply.get("content"), reply.get("tool_call_id")
        if not isinstance(content, str) or (id is not None and id not in ids):
            return None
        if reply.keys() != (_CONTENT if id is None else _RESULT) or (id is None) != (reply["role"] != "tool"):
            return None
        kind.append((reply["role"], _NO_ID if id is None else ids.index(id), content != ""))
        if content:
            contents.append(content)
    found = tuple(kind)
    key = (bool(calls), tuple(names), found)
    if not call_ids.shown:
        return Varying(key, found, contents)
    if not all(map(call_ids.accepts, ids, names)):
        return None
    return Varying(key, found, contents, ids, names)


def answer_with(
    message: Message, replies: Sequence[Message], parts: Varying, values: Sequence[str]
) -> tuple[Message, list[Message]]:
    """The turn and its replies with other contents and ids: `values` has as many as `parts`."""
    contents, ids = iter(values[: len(parts.contents)]), values[len(parts.contents) :]
    changed: list[Message] = []
    for reply, (_, call, says) in zip(replies, parts.kind, strict=True):
        reply = {**reply, "content": next(contents)} if says else reply
        changed.append({**reply, "tool_call_id": ids[call]} if ids and call != _NO_ID else reply)
    calls = message.get("tool_calls") or ()
    if not ids or not calls:
        return message, changed
    return {**message, "tool_calls": [{**call, "id": id} for call, id in zip(calls, ids, strict=True)]}, changed


def of_prompt(messages: Sequence[Message], tools: Sequence[Json], usual: Sequence[Json] = ()) -> Varying | None:
    """The parts of a first prompt: the user's message varies. None for a prompt that has no shape.

    Nobody changes the `usual` tools, so they need not be written down when they are given again.
    """
    if not 0 < len(messages) <= 2 or messages[-1].get("role") != "user":
        return None
    for message in messages:
        if message.keys() != _CONTENT or not isinstance(message["content"], str):
            return None
    *before, (_, content) = [(message["role"], message["content"]) for message in messages]
    try:
        known = len(tools) == len(usual) and all(map(is_, tools, usual))
        shown = b"" if known else marshal.dumps(list(tools), 2)  # tells True from 1, and is quick
    except ValueError:
        return None
    kind = tuple((message["role"], _NO_ID, message["content"] != "") for message in messages)
    return Varying((shown, *before, kind), kind, [content] if content else [])

"""The messages and tool schemas of an episode in OpenAI's form, and the ids of its tool calls.

The invariant: rollq never gives two calls of a turn the same id. It knows neither tokens nor
templates. The renderer decides if a template takes the model's own ids.
"""

import json
import marshal
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from rollq.env import RESPOND, Action, Environment
from rollq.events import Message
from rollq.images import ImageRef, content_with
from rollq.job import Json
from rollq_worker.episode.text_actions import RESULT
from rollq_worker.protocols import ReadTurn, Renderer

MAX_SCHEMAS = 64
"""Number of environments whose schemas are kept. Some make up tools for every task."""
# json.dumps would make the encoder for every call
_as_json = json.JSONEncoder(ensure_ascii=False).encode


class _Schemas(NamedTuple):
    """Checked schemas, and a key that tells them from others."""

    checked: list[Json]
    key: bytes


_schemas: dict[bytes, _Schemas] = {}
"""Checked schemas by those of an environment."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """An action that was carried out, and its results."""

    action: Action
    id: str
    """The call's id; "" without a tool call: RESPOND, and every action written as text."""
    text: str
    """The observation that the policy is shown."""
    user_messages: Sequence[str] = ()
    """Messages of the user during the action."""
    reward: float | None = None
    """The environment's reward for it."""
    images: Sequence[ImageRef] = ()
    """Images that the policy sees behind the text."""

    @property
    def reply(self) -> Message:
        content = content_with(self.text, self.images)
        if self.action.name == RESPOND:
            return {"role": "user", "content": content}
        if self.id:
            return {"role": "tool", "tool_call_id": self.id, "content": content}
        return {"role": "user", "content": content_with(RESULT + self.text, self.images)}

    @property
    def recorded(self) -> dict[str, Json]:
        return recorded_action(self.action, self.text, self.user_messages, self.reward)


def for_environment(action: Action) -> Action:
    """A copy of the action, whose arguments an environment may change."""
    return replace(action, arguments=deepcopy(action.arguments))


def recorded_action(
    action: Action,
    text: str,
    user_messages: Sequence[str],
    reward: float | None,
) -> dict[str, Json]:
    """The action as the journal has it: with the user's messages, unless that is the observation's
    `text` itself, with its missing end tag, and with its reward.
    """
    recorded: dict[str, Json] = {"name": action.name, "arguments": dict(action.arguments)}
    if list(user_messages) != user_messages_in(recorded, text):
        recorded["user"] = list(user_messages)
    if action.unclosed:
        recorded["unclosed"] = True
    if reward is not None:
        recorded["reward"] = float(reward)
    return recorded


def user_messages_in(recorded: Mapping[str, Json], text: str) -> Sequence[str]:
    """Messages of the user during a recorded action that led to `text`. The opening of an episode
    has the name "".
    """
    speaks = recorded["name"] in ("", RESPOND)
    return cast("Sequence[str]", recorded.get("user", [text] if speaks else []))


class CallIds:
    """Ids for the calls of one episode: the model's own, or ones that count over all turns."""

    def __init__(self, words: str | None = None) -> None:
        """`words`: the name of an action that is not a call."""
        self._words = words
        self._count = 0

    def of(self, renderer: Renderer, read: ReadTurn, actions: Sequence[Action]) -> list[str]:
        """An id for each of the turn's first actions, all different; "" for actions that are not
        calls.
        """
        ids: list[str] = []
        for n, action in enumerate(actions):
            model_id = read.call_ids[n] if n < len(read.call_ids) else ""
            is_call = action.name != self._words
            ids.append(self._unused(renderer, ids, model_id, action.name) if is_call else "")
        return ids

    def _unused(
        self,
        renderer: Renderer,
        used: Sequence[str],
        model_id: str,
        tool: str,
    ) -> str:
        id = self.next(renderer, "" if model_id in used else model_id, tool)
        while id in used:  # the model has made up an id that rollq counts to
            id = self.next(renderer, "", tool)
        return id

    def next(self, renderer: Renderer, model_id: str, tool: str) -> str:
        self._count += 1
        return renderer.call_id(model_id, tool, self._count - 1)


def assistant_message(read: ReadTurn, calls: Sequence[tuple[str, Action]]) -> Message:
    """A sampled turn, with these calls by their ids."""
    message: Message = {"role": "assistant", "content": read.content}
    if read.reasoning:
        message["reasoning_content"] = read.reasoning
    if calls:
        message["tool_calls"] = [_call(id, action) for id, action in calls]
    return message


def _call(id: str, action: Action) -> Json:
    arguments = _as_json(dict(action.arguments))
    function = {"name": action.name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def replying_role(action: Action, text_actions: bool) -> str:
    """The role of the message that answers an action; `text_actions`: Strategy.text_actions."""
    if text_actions or action.name == RESPOND:
        return "user"
    return "tool"


def schemas_of(environment: Environment) -> list[Json]:
    """Plain copies of the schemas, checked for everything that templates, tool parsers and the wire
    need.

    Environments with equal schemas share one list, which must not be changed, and which is not
    checked again when it comes back. Raises TypeError or ValueError for what is not a schema, and
    whatever reading the schemas raises.
    """
    if environment is None:
        raise TypeError("open() returned None, not an environment")
    tools = environment.tools
    if any(tools is kept.checked for kept in list(_schemas.values())):
        return cast("list[Json]", tools)
    tools = list(tools)
    try:
        key = _key(tools)
    except ValueError:
        return checked_schemas(tools)
    kept = _schemas.get(key)
    if kept is None:
        if len(_schemas) >= MAX_SCHEMAS:
            _schemas.clear()
        checked = checked_schemas(tools)
        # threads that begin at once share one
        kept = _schemas.setdefault(key, _Schemas(checked, _key(checked)))
    return kept.checked


def key_of_schemas(schemas: Sequence[Json]) -> bytes:
    """A key that tells these schemas from others."""
    for kept in list(_schemas.values()):
        if kept.checked is schemas:
            return kept.key
    return _key(schemas)


def _key(tools: Sequence[Json]) -> bytes:
    """Raises ValueError for tools that are not plain."""
    return marshal.dumps(list(tools), 2)  # tells True from 1, and is four times as quick as JSON


def checked_schemas(tools: Sequence[Json]) -> list[Json]:
    """Plain copies of tool schemas. Raises TypeError or ValueError for other values."""
    text = json.dumps(tools, allow_nan=False)
    schemas: Json = json.loads(text)
    names = [_tool_name(schema) for schema in schemas]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"there are several tools named {', '.join(repeated)}")
    return list(schemas)


def _tool_name(schema: Json) -> str:
    function = schema.get("function") if isinstance(schema, dict) else None
    if not isinstance(function, dict):
        raise ValueError(
            f'a tool schema is {{"type": "function", "function": {{...}}}}, not {schema!r:.100}'
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a tool has no name: {function!r:.100}")
    for key, kind in (("description", str), ("parameters", dict)):
        if key in function and not isinstance(function[key], kind):
            raise ValueError(f"the {key} of tool {name!r} is {function[key]!r:.100}")
    return name

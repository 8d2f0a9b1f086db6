"""A conversation in OpenAI's form: what was said and done in it, and how its calls are named.

The invariant: no two answers to calls have the same id by rollq's doing. It knows neither tokens nor templates; the
renderer says which of the model's own ids a template takes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.protocols import RESPOND, Action, ReadTurn


@dataclass(frozen=True, slots=True)
class Answered:
    """An action that was carried out, and what came of it."""

    action: Action
    id: str
    """Of the call; "" for RESPOND."""
    text: str
    """What the policy is shown."""
    words: Sequence[str] = ()
    """What the user said meanwhile."""

    @property
    def reply(self) -> Message:
        if speaker(self.action) == "user":
            return {"role": "user", "content": self.text}
        return {"role": "tool", "tool_call_id": self.id, "content": self.text}

    @property
    def call(self) -> Json:
        arguments = json.dumps(dict(self.action.arguments), ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.action.name, "arguments": arguments}}

    @property
    def recorded(self) -> dict[str, Json]:
        """As the journal has it: the user's words where they are not the reply itself."""
        action: dict[str, Json] = {"name": self.action.name, "arguments": dict(self.action.arguments)}
        if list(self.words) != ([self.text] if speaker(self.action) == "user" else []):
            action["user"] = list(self.words)
        return action


class Dialogue:
    """The messages so far. `name` gives a call its id: protocols.Renderer.call_id."""

    def __init__(self, name: Callable[[str, str, int], str]) -> None:
        self.messages: list[Message] = []
        self._name = name
        self._calls = 0

    def call_ids(self, read: ReadTurn, actions: Sequence[Action]) -> list[str]:
        """One an action: the model's own id, or one that counts over the whole episode."""
        ids: list[str] = []
        for n, action in enumerate(actions):
            own = read.call_ids[n] if n < len(read.call_ids) else ""
            ids.append("" if action.name == RESPOND else self._unlike(ids, own, action.name))
        return ids

    def complaint(self, role: str, text: str) -> Message:
        """What answers a turn that cannot be acted on."""
        if role == "tool":
            return {"role": role, "tool_call_id": self._next("", "tool"), "content": text}
        return {"role": role, "content": text}

    def _unlike(self, ids: Sequence[str], own: str, tool: str) -> str:
        id = self._next("" if own in ids else own, tool)
        while id in ids:  # the model has used up this number
            id = self._next("", tool)
        return id

    def _next(self, own: str, tool: str) -> str:
        self._calls += 1
        return self._name(own, tool, self._calls - 1)


def assistant(read: ReadTurn, answered: Sequence[Answered]) -> Message:
    """A sampled turn, with the calls that were carried out."""
    message: Message = {"role": "assistant", "content": read.content}
    if read.reasoning:
        message["reasoning_content"] = read.reasoning
    calls = [done.call for done in answered if speaker(done.action) == "tool"]
    return {**message, "tool_calls": calls} if calls else message


def speaker(action: Action) -> str:
    """The role that answers an action."""
    return "user" if action.name == RESPOND else "tool"

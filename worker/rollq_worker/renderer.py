"""A chat template as token ids: the first prompt once, then only bridges.

A bridge is what the template puts between the end of a sampled turn and the next assistant header. It is rendered over
a short made-up conversation and cut behind the turn's stop token, so that it depends neither on the history nor on how
the template would rewrite it. Sampled ids are never rendered again. It does not know environments or engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
from array import array
from collections.abc import Mapping, Sequence

from rollq.errors import JobFailure
from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.family import Family, family_of, probe_call
from rollq_worker.guard import Controls, Guard
from rollq_worker.protocols import ReadTurn
from rollq_worker.tokenizer import Tokenizer
from rollq_worker.toolcalls import PARSERS

HEADS = 4096
"""Kinds of turns whose rendering is remembered."""
ROLES = frozenset({"system", "user", "assistant", "tool"})
BASE: tuple[Message, ...] = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
"""Templates need both: some refuse a conversation without a user, some invent a system prompt."""


class ChatRenderer:
    """protocols.Renderer for one tokenizer. Holds no state of an episode: threads may share it."""

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[Json] = (), family: Family | None = None) -> None:
        """`tools` lend a name to the stand-in for a call that could not be read. Raises JobFailure (unknown family)."""
        self.tokenizer = tokenizer
        self.family = family or family_of(tokenizer)
        stops = [tokenizer.added_tokens[text] for text in self.family.stops if text in tokenizer.added_tokens]
        self.stop_ids: Sequence[int] = tuple(dict.fromkeys((*stops, *tokenizer.eos_ids)))
        self._controls = Controls(tokenizer)
        self._heads: dict[str, str] = {}
        self._stand_in = probe_call(str(tools[0]["function"]["name"]) if tools else "tool")
        self._no_tools: Sequence[Json] | None = None
        try:
            header = self._render(BASE)
        except JobFailure:  # a template for tool use only walks the list unasked
            self._no_tools = ()
            header = self._render(BASE)
        self._thinking = header.rstrip().endswith("<think>")
        """The assistant header opens the reasoning block, so a turn starts inside it."""

    def open(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        """The first prompt, generation prompt included. Raises JobFailure when the template cannot do it."""
        guard = Guard(self._controls)
        shown = [guard.hide(_for_template(message)) for message in messages]
        # All episodes of an environment share the long system prompt.
        return guard.encode(self._render(shown, guard.hide(list(tools))), remember=True)

    def read(self, ids: array[int]) -> ReadTurn:
        """Parse a whole sampled turn, stop token included if there is one."""
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return PARSERS[self.family.parser](self.tokenizer.decode(ids), self._thinking)

    def bridge(self, message: Message, replies: Sequence[Message]) -> array[int]:
        """The tokens from right behind the stop token of the turn `message` to the end of the next assistant header.

        Replies that belong together (several tool results) come in one call. Raises JobFailure for roles that the
        family does not take there, and when the template gives no clean cut.
        """
        roles = [str(reply.get("role")) for reply in replies]
        if not roles or not self.family.roles.issuperset(roles):
            raise self._refusal(roles, f"a turn is answered by {' or '.join(sorted(self.family.roles))}")
        guard = Guard(self._controls)
        turn = guard.hide(self._turn(message, roles[0]))
        shown = [guard.hide(_for_template(reply)) for reply in replies]
        real = self._render([*BASE, turn, *shown])
        key = json.dumps([turn, roles])
        head = self._heads.get(key)
        if head is None or not real.startswith(head):
            head = self._head(turn, shown, guard.mark())
            if not head or not real.startswith(head):
                raise self._refusal(roles, "the template does not end the assistant's turn before the reply")
            if len(self._heads) >= HEADS:
                self._heads.clear()
            self._heads[key] = head
        return guard.encode(real[len(head) :])

    def _head(self, turn: Message, replies: Sequence[Message], anchor: str) -> str:
        """What comes before the bridge: all up to the last stop token before the first reply's content; "" if none."""
        marked = self._render([*BASE, turn, {**replies[0], "content": anchor}, *replies[1:]])
        head, found, _ = marked.partition(anchor)
        cut = max(head.rfind(stop) + len(stop) if stop in head else 0 for stop in self.family.stops)
        return head[:cut] if found else ""

    def _turn(self, message: Message, role: str) -> Message:
        """What stands for the sampled turn: its calls, as far as a template looks back at them."""
        calls = _for_template(message).get("tool_calls")
        if calls:
            return {"role": "assistant", "content": "", "tool_calls": calls}
        return self._stand_in if role == "tool" else {"role": "assistant", "content": "a"}

    def _render(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> str:
        return self.tokenizer.render(
            messages, tools or self._no_tools, add_generation_prompt=True, **self.family.kwargs
        )

    def _refusal(self, roles: Sequence[str], why: str) -> JobFailure:
        edge = f"assistant -> {', '.join(roles) or 'nothing'} -> assistant"
        return JobFailure(f"{self.tokenizer.name}: the edge {edge} is not supported: {why}")


def _for_template(message: Message) -> Message:
    """OpenAI's form to what templates take: arguments as objects, content never None. Raises JobFailure (role)."""
    if message.get("role") not in ROLES:
        raise JobFailure(f"a message has the role {message.get('role')!r}; there is {', '.join(sorted(ROLES))}")
    shown = {**message, "content": message.get("content") or ""}
    if message.get("tool_calls"):
        shown["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"])}}
            for call in message["tool_calls"]
        ]
    return shown


def _arguments(function: Mapping[str, Json]) -> Json:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments

"""Checks on a golden conversation that bridges are what the chat template itself would have written.

For every edge of an episode the sampled history plus the bridge is compared, id for id, with the full render of the
same conversation. Runs once per tokenizer, template and tools. It does not know environments or jobs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from rollq.errors import JobFailure
from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.family import probe_call
from rollq_worker.renderer import ChatRenderer
from rollq_worker.tokenizer import Tokenizer


class Edge(StrEnum):
    """What may follow a sampled turn."""

    CALL = "call -> tool"
    AGAIN = "second call -> tool"
    CALLS = "calls -> tools"
    USER = "reply -> user"
    EMPTY = "call -> empty tool output"
    LINES = "call -> tool output of several lines"
    MALFORMED = "malformed call -> tool"
    THOUGHT_CALL = "reasoning, call -> tool"
    THOUGHT_USER = "reasoning, reply -> user"


class Match(StrEnum):
    """How an edge's bridge compares with the template's full render."""

    EXACT = "exact"
    """The same ids."""
    REWRITE = "rewrite"
    """The template writes earlier turns differently once more follows; the bridge keeps them as they were sampled."""
    UNSUPPORTED = "unsupported"
    """There is no bridge, or it is not what the template puts there."""


NEEDED = (Edge.CALL, Edge.AGAIN, Edge.USER, Edge.EMPTY, Edge.LINES, Edge.MALFORMED)
"""The edges any tool-calling episode may take."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One edge's class and, unless exact, why."""

    match: Match
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """The edges of one tokenizer, template and tools."""

    tokenizer: str
    family: str
    edges: Mapping[Edge, Finding]

    def require(self, *edges: Edge) -> None:
        """Raise JobFailure naming the first of these edges that is unsupported."""
        for edge in edges:
            if self.edges[edge].match is Match.UNSUPPORTED:
                raise JobFailure(
                    f"{self.tokenizer}: the chat template does not support the edge {edge.value!r}: "
                    f"{self.edges[edge].why}; use another template or model"
                )

    @cached_property
    def table(self) -> str:
        """One line an edge, for people."""
        width = max(len(edge) for edge in self.edges)
        lines = (f"{edge.value:{width}}  {found.match.value:11}  {found.why}" for edge, found in self.edges.items())
        return "\n".join(line.rstrip() for line in lines)


_checked: dict[tuple[str, str, str], SelfCheck] = {}


def check(tokenizer: Tokenizer, tools: Sequence[Json]) -> SelfCheck:
    """Class every edge for these tools. Raises JobFailure for an unknown family or a prompt that cannot be rendered."""
    digest = hashlib.sha256(json.dumps(list(tools), sort_keys=True).encode()).hexdigest()
    key = (tokenizer.hash, tokenizer.template_hash, digest)
    if key not in _checked:
        renderer = ChatRenderer(tokenizer, tools)
        probe = _Probe(renderer, tools)
        edges = {edge: probe.find(edge) for edge in Edge}
        _checked[key] = SelfCheck(tokenizer=tokenizer.name, family=renderer.family.name, edges=edges)
    return replace(_checked[key], tokenizer=tokenizer.name)


def checked_renderer(tokenizer: Tokenizer, tools: Sequence[Json]) -> ChatRenderer:
    """A renderer for these tools. Raises JobFailure when an edge that any episode may take is unsupported."""
    check(tokenizer, tools).require(*NEEDED)
    return ChatRenderer(tokenizer, tools)


class _Probe:
    """The golden conversation, rendered in full and by bridges."""

    def __init__(self, renderer: ChatRenderer, tools: Sequence[Json]) -> None:
        self.renderer = renderer
        self.tokenizer = renderer.tokenizer
        self.tools = list(tools)
        self.name = str(tools[0]["function"]["name"]) if tools else "probe"
        self.opening: list[Message] = [
            {"role": "system", "content": "You are an agent.\n\nBe brief."},
            {"role": "user", "content": "Hello, where is my order #W123?"},
        ]

    def find(self, edge: Edge) -> Finding:
        history, turn, replies = self.conversation(edge)
        try:
            bridge = self.renderer.bridge(turn, replies)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e))
        # A template may refuse a tool message without a call before it: then there is nothing to compare with but
        # the same with a call.
        turns = [turn, self.call()] if edge is Edge.MALFORMED else [turn]
        refusal = ""
        for turn in turns:
            try:
                return self.compare(history, turn, replies, bridge)
            except JobFailure as e:
                refusal = str(e)
        return Finding(Match.UNSUPPORTED, refusal)

    def conversation(self, edge: Edge) -> tuple[list[Message], Message, list[Message]]:
        """History, the sampled turn, and what answers it."""
        result: Message = {
            "role": "tool",
            "tool_call_id": "call00000",
            "content": '{"status": "pending", "total": 19.5}',
        }
        user: Message = {"role": "user", "content": "Thank you. And the other one?"}
        thought = "<think>\nThey want the order.\n</think>\n\n"
        reply: Message = {"role": "assistant", "content": "It is on its way."}
        match edge:
            case Edge.AGAIN:
                return (
                    [*self.opening, self.call(), result],
                    self.call("call00001"),
                    [result | {"tool_call_id": "call00001"}],
                )
            case Edge.CALLS:
                return (
                    self.opening,
                    self.call("call00000", "call00001"),
                    [result, result | {"tool_call_id": "call00001"}],
                )
            case Edge.USER:
                return self.opening, reply, [user]
            case Edge.EMPTY:
                return self.opening, self.call(), [result | {"content": ""}]
            case Edge.LINES:
                return self.opening, self.call(), [result | {"content": "\n\n one\n\ttwo \r\nthree\n\n"}]
            case Edge.MALFORMED:
                return self.opening, reply | {"content": '<tool_call>\n{"name": \n</tool_call>'}, [result]
            case Edge.THOUGHT_CALL:
                return self.opening, self.call() | {"content": thought}, [result]
            case Edge.THOUGHT_USER:
                return self.opening, reply | {"content": thought + "It is on its way."}, [user]
            case _:
                return self.opening, self.call(), [result]

    def call(self, *ids: str) -> Message:
        calls = [probe_call(self.name, {"x": "1"}, id)["tool_calls"][0] for id in ids or ("call00000",)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def compare(self, history: list[Message], turn: Message, replies: list[Message], bridge: array[int]) -> Finding:
        """Raises JobFailure when the template refuses one of the full renders."""
        prompt = self.render(history, add_generation_prompt=True)
        if self.tokenizer.encode(prompt) != self.renderer.open(history, self.tools):
            return Finding(Match.UNSUPPORTED, "control tokens cannot be told from text in this vocabulary")
        said = self.render([*history, turn], add_generation_prompt=False)
        cut = max(said.rfind(stop) + len(stop) if stop in said else 0 for stop in self.renderer.family.stops)
        if not said.startswith(prompt) or cut <= len(prompt):
            return Finding(Match.REWRITE, "the template writes the prompt of a turn differently once the turn follows")
        full = self.render([*history, turn, *replies], add_generation_prompt=True)
        if not full.startswith(said[:cut]):
            return Finding(Match.REWRITE, "the template rewrites earlier turns when this follows")
        if self.tokenizer.encode(said[:cut]) + bridge != self.tokenizer.encode(full):
            return Finding(Match.UNSUPPORTED, "the bridge differs from what the template writes after this history")
        return Finding(Match.EXACT)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        return self.tokenizer.render(
            messages, self.tools or None, add_generation_prompt=add_generation_prompt, **self.renderer.family.kwargs
        )

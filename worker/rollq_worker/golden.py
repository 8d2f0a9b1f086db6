"""The golden conversations of the self-check: one for every edge of an episode.

Every text holds a word that nothing else holds, so that it can be told what a template leaves out. It does not know
templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.family import probe_call

THOUGHT = "thoughtword"
"""What the sampled turn's reasoning holds."""


class Edge(StrEnum):
    """What may follow a sampled turn; and what comes before the first one."""

    OPEN = "first prompt"
    CALL = "call -> tool"
    AGAIN = "second call -> tool"
    CALLS = "calls -> tools"
    USER = "reply -> user"
    SERVED = "call, reply -> user"
    CUT = "truncated turn -> user"
    EMPTY = "call -> empty tool output"
    LINES = "call -> tool output of several lines"
    MALFORMED = "malformed call -> tool"
    THOUGHT_CALL = "reasoning, call -> tool"
    THOUGHT_AGAIN = "reasoning, second call -> tool"
    THOUGHT_USER = "reasoning, reply -> user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A history, the turn that was sampled after it, and what answers that."""

    history: Sequence[Message]
    turn: Message
    """As the template is shown it."""
    message: Message
    """As the bridge is told of it."""
    replies: Sequence[Message]
    words: Sequence[str]
    """What of the replies must show."""
    cut: bool = False
    """The turn ended without a stop token."""
    thought: str = ""
    """A word of the turn's reasoning."""


class Golden:
    """Conversations with a set of tools."""

    def __init__(self, tools: Sequence[Json]) -> None:
        self.tools = list(tools)
        self._name = str(tools[0]["function"]["name"]) if tools else "probe"
        self.opening: list[Message] = [
            {"role": "system", "content": "You are an agent.\n\nBe brief (systemword)."},
            {"role": "user", "content": "Hello, where is my order #W123?"},
        ]
        self.asked = "#W123"
        """What the user's first message holds."""
        self.words: Mapping[str, Sequence[str]] = {
            "the system prompt": ["systemword"],
            "the user's message": [self.asked],
            "the tools": [str(tool["function"]["name"]) for tool in tools],
        }
        """What the first prompt must show, by what it tells of."""
        self.told_once: Sequence[str] = ("systemword", *self.words["the tools"][1:])
        """What the replies have no reason to show again: the system prompt, and the tools that are not called."""

    def plays(self, edge: Edge) -> Iterator[Play]:
        """What the edge is tried on: the first one that the template can render."""
        if edge is Edge.MALFORMED:
            broken: Message = {"role": "assistant", "content": "Trying. call name args"}
            yield self._play(self.opening, broken, [self.result()])
            # A template may refuse a tool message without a call before it: then there is nothing to compare with but
            # the same with a call.
            yield self._play(self.opening, self.call(), [self.result()], message=broken)
            return
        thoughts = edge in (Edge.THOUGHT_CALL, Edge.THOUGHT_AGAIN, Edge.THOUGHT_USER)
        for form in ("key", "tags") if thoughts else ("",):
            yield self._on(edge, form)

    def _on(self, edge: Edge, thought: str) -> Play:
        user: Message = {"role": "user", "content": "Thank you. And the secondword one?"}
        reply: Message = {"role": "assistant", "content": "It is on its way."}
        first, again = self.think(self.call(), thought), self.think(self.call("call00001"), thought)
        former = self.think(self.call(), thought, "formerword")
        one, two = self.result(), self.result("call00001", '{"status": "laterword", "total": 7}')
        match edge:
            case Edge.AGAIN | Edge.THOUGHT_AGAIN:
                return self._play([*self.opening, former, one], again, [two])
            case Edge.CALLS:
                return self._play(self.opening, self.call("call00000", "call00001"), [one, two])
            case Edge.USER:
                return self._play(self.opening, reply, [user])
            case Edge.SERVED | Edge.THOUGHT_USER:
                return self._play([*self.opening, former, one], self.think(reply, thought), [user])
            case Edge.CUT:
                return self._play(self.opening, reply, [user], cut=True)
            case Edge.EMPTY:
                return self._play(self.opening, self.call(), [one | {"content": ""}])
            case Edge.LINES:
                return self._play(self.opening, self.call(), [one | {"content": "\n\n one\n\ttwo \r\nthree\n\n"}])
            case _:
                return self._play(self.opening, first, [one])

    def _play(
        self,
        history: Sequence[Message],
        turn: Message,
        replies: Sequence[Message],
        message: Message | None = None,
        cut: bool = False,
    ) -> Play:
        known = ("pendingword", "laterword", "secondword", "three")
        words = [word for word in known if any(word in reply["content"] for reply in replies)]
        thought = THOUGHT if THOUGHT in f"{turn.get('reasoning_content')}{turn['content']}" else ""
        return Play(
            history=history, turn=turn, message=message or turn, replies=replies, words=words, cut=cut, thought=thought
        )

    def call(self, *ids: str) -> Message:
        """A turn with a call for each id."""
        calls = [probe_call(self._name, {"x": "1"}, id)["tool_calls"][0] for id in ids or ("call00000",)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def result(self, id: str = "call00000", content: str = '{"status": "pendingword", "total": 19.5}') -> Message:
        """What a tool answered."""
        return {"role": "tool", "tool_call_id": id, "content": content}

    def think(self, turn: Message, form: str, word: str = THOUGHT) -> Message:
        """The turn after some reasoning: under its key, or in tags for a template that only knows those."""
        if form == "key":
            return {**turn, "reasoning_content": f"They want the {word} order."}
        if form == "tags":
            return {**turn, "content": f"<think>\nThey want the {word} order.\n</think>\n\n{turn['content']}"}
        return turn

"""The golden conversations of the self-check: one for every edge of an episode.

Every text holds a word that nothing else holds, so that it can be told what a template leaves out. It does not know
templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.family import probe_call

THOUGHT = "thoughtword"
"""What the sampled turn's reasoning holds."""
ASIDE = "asideword"
"""What the sampled turn says beside a call."""


class Edge(StrEnum):
    """What may follow a sampled turn; and what comes before the first one."""

    OPEN = "first prompt"
    CALL = "call -> tool"
    AGAIN = "second call -> tool"
    CALLS = "calls -> tools"
    WORDS = "words, call -> tool"
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
    replies: Sequence[Message]
    words: Sequence[str]
    """What of the replies must show."""
    cut: bool = False
    """The turn ended without a stop token."""
    beside: str = ""
    """A word of the turn that is neither its call nor its reply: some templates leave such out."""


class Golden:
    """Conversations with a set of tools."""

    def __init__(
        self, tools: Sequence[Json], complaint: str = "tool", think: tuple[str, str] = ("<think>", "</think>")
    ) -> None:
        """`complaint`: the role that answers a malformed call; `think`: what stands around reasoning in a turn."""
        self.tools = list(tools)
        self._complaint = complaint
        self._think = think
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

    def plays(self, edge: Edge, tags: bool = True) -> Iterator[Play]:
        """What the edge is tried on: the first one that the template can render. `tags`: reasoning in tags as well."""
        if edge is Edge.MALFORMED:
            broken: Message = {"role": "assistant", "content": "Trying. call name args"}
            complaint = self.result()
            if self._complaint != "tool":
                complaint = {"role": self._complaint, "content": complaint["content"]}
            yield self._play(self.opening, broken, [complaint])
            return
        thoughts = edge in (Edge.THOUGHT_CALL, Edge.THOUGHT_AGAIN, Edge.THOUGHT_USER)
        for form in ("key", *["tags"] * tags) if thoughts else ("",):
            yield self._on(edge, form)

    def plainer(self, play: Play) -> Play:
        """The same as the first turn of the conversation, and without words beside its calls."""
        if not play.turn.get("tool_calls"):
            return replace(play, history=self.opening)
        return replace(play, history=self.opening, turn={**play.turn, "content": ""})

    def _on(self, edge: Edge, thought: str) -> Play:
        user: Message = {"role": "user", "content": "Thank you. And the secondword one?"}
        reply = self.say()
        first, again = self.think(self.call(), thought), self.think(self.call("call00001"), thought)
        former = self.think(self.call(), thought, "formerword")
        one, two = self.result(), self.result("call00001", '{"status": "laterword", "total": 7}')
        match edge:
            case Edge.AGAIN | Edge.THOUGHT_AGAIN:
                return self._play([*self.opening, former, one], again, [two])
            case Edge.CALLS:
                return self._play(self.opening, self.call("call00000", "call00001"), [one, two])
            case Edge.WORDS:
                return self._play(self.opening, self.call() | {"content": f"I look it up ({ASIDE})."}, [one])
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
        cut: bool = False,
    ) -> Play:
        known = ("pendingword", "laterword", "secondword", "three")
        words = [word for word in known if any(word in reply["content"] for reply in replies)]
        shown = f"{turn.get('reasoning_content')}{turn['content']}"
        beside = next((word for word in (THOUGHT, ASIDE) if word in shown), "")
        return Play(history=history, turn=turn, replies=replies, words=words, cut=cut, beside=beside)

    def call(self, *ids: str) -> Message:
        """A turn with a call for each id."""
        calls = [probe_call(self._name, {"x": "1"}, id)["tool_calls"][0] for id in ids or ("call00000",)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def say(self) -> Message:
        """A turn that only speaks."""
        return {"role": "assistant", "content": "It is on its way."}

    def result(self, id: str = "call00000", content: str = '{"status": "pendingword", "total": 19.5}') -> Message:
        """What a tool answered."""
        return {"role": "tool", "tool_call_id": id, "content": content}

    def think(self, turn: Message, form: str, word: str = THOUGHT) -> Message:
        """The turn after some reasoning: under its key, or in tags for a template that only knows those."""
        if form == "key":
            return {**turn, "reasoning_content": f"They want the {word} order."}
        if form == "tags":
            before, after = self._think
            return {**turn, "content": f"{before}\nThey want the {word} order.\n{after}\n\n{turn['content']}"}
        return turn

"""The golden conversations of the self-check: a short one for every edge of an episode, and long ones of all edges.

Every text holds a word that nothing else holds, so that it can be told what a template leaves out. It does not know
templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.tokens.model_family import probe_call

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


_LONG = "\n".join((*["One of many lines of a long text."] * 60, "lastword\n"))
"""Over 2,000 characters."""
_WORDS = ("pendingword", "laterword", "secondword", "three", "lastword")
"""What replies hold."""
_LATER = '{"status": "laterword", "total": 7}'
SHORT = 4
"""Messages: the longest history of a short conversation."""
_LONG_ONES = (Edge.LINES, Edge.CUT, Edge.THOUGHT_USER, Edge.THOUGHT_AGAIN)
"""What is answered at length in long conversations."""
_THOUGHTS = (Edge.THOUGHT_CALL, Edge.THOUGHT_AGAIN, Edge.THOUGHT_USER)
EPISODES: Sequence[Sequence[Edge]] = (
    (
        *(Edge.CALL, Edge.CALL, Edge.LINES, Edge.CALL, Edge.MALFORMED, Edge.MALFORMED, Edge.USER, Edge.CALL),
        *(Edge.CALLS, Edge.WORDS, Edge.EMPTY, Edge.USER, Edge.CUT),
    ),
    # Users alone.
    (Edge.USER, Edge.USER, Edge.CUT, Edge.USER, Edge.CALL),
    # Malformed calls first; then turns that reason, among others.
    (
        *(Edge.MALFORMED, Edge.MALFORMED, Edge.CALLS, Edge.THOUGHT_CALL, Edge.THOUGHT_AGAIN, Edge.CALL, Edge.LINES),
        *(Edge.THOUGHT_CALL, Edge.MALFORMED, Edge.THOUGHT_USER, Edge.THOUGHT_CALL, Edge.EMPTY, Edge.WORDS),
        *(Edge.THOUGHT_USER, Edge.CALL),
    ),
)
"""Long conversations: with the short ones, each edge three times or more, in orders that episodes take."""


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
        for form in ("key", *["tags"] * tags) if edge in _THOUGHTS else ("",):
            history = list(self.opening)
            if edge in (Edge.AGAIN, Edge.SERVED, Edge.THOUGHT_AGAIN, Edge.THOUGHT_USER):
                history += [self.think(self.call(), form, "formerword"), self.result()]
            yield self.later(edge, history, form)

    def later(self, edge: Edge, history: Sequence[Message], form: str) -> Play:
        """The edge behind this history. `form`: of reasoning, where the edge is one of turns that reason."""
        turn, replies = self._turn(edge, sum(message["role"] == "tool" for message in history))
        if len(history) > SHORT and edge in _LONG_ONES:
            replies = [{**replies[0], "content": f"{replies[0]['content']}\n{_LONG}"}]
        if edge in _THOUGHTS:
            turn = self.think(turn, form)
        words = [word for word in _WORDS if any(word in reply["content"] for reply in replies)]
        shown = f"{turn.get('reasoning_content')}{turn['content']}"
        beside = next((word for word in (THOUGHT, ASIDE) if word in shown), "")
        return Play(history=history, turn=turn, replies=replies, words=words, cut=edge is Edge.CUT, beside=beside)

    def edges(self, edge: Edge, play: Play) -> Sequence[Edge]:
        """The edges that a play of `edge` is one of, behind its history: what is special of it first.

        A turn that reasons is one of those that do. Any other is of its own kind, one more call or one more user when
        tools have answered before, and one among those that reason when one of them came before.
        """
        served = any(message["role"] == "tool" for message in play.history)
        if play.replies[0]["role"] == "user":
            plain, thoughtful = Edge.SERVED if served else Edge.USER, Edge.THOUGHT_USER
        elif served:
            plain, thoughtful = Edge.AGAIN, Edge.THOUGHT_AGAIN
        else:
            plain, thoughtful = Edge.CALL, Edge.THOUGHT_CALL
        if edge in _THOUGHTS:
            return [thoughtful]
        found: list[Edge] = [] if edge in (Edge.CALL, Edge.USER) else [edge]
        if any(THOUGHT in f"{message.get('reasoning_content')}{message['content']}" for message in play.history):
            found.append(thoughtful)
        if served or not found:
            found.append(plain)
        return found

    def plainer(self, play: Play) -> Play:
        """The same as the first turn of the conversation, and without words beside its calls."""
        if not play.turn.get("tool_calls"):
            return replace(play, history=self.opening)
        return replace(play, history=self.opening, turn={**play.turn, "content": ""})

    def _turn(self, edge: Edge, n: int) -> tuple[Message, list[Message]]:
        """A turn and its replies, after `n` results."""
        ids = [f"call{n + more:05}" for more in range(3)]
        one = self.result(ids[0])
        match edge:
            case Edge.USER | Edge.SERVED | Edge.CUT | Edge.THOUGHT_USER:
                return self.say(), [{"role": "user", "content": "Thank you. And the secondword one?"}]
            case Edge.CALLS:
                return self.call(*ids), [one, *(self.result(id, _LATER) for id in ids[1:])]
            case Edge.WORDS:
                return self.call(ids[0]) | {"content": f"I look it up ({ASIDE})."}, [one]
            case Edge.EMPTY:
                return self.call(ids[0]), [one | {"content": ""}]
            case Edge.LINES:
                return self.call(ids[0]), [one | {"content": "\n\n one\n\ttwo \r\nthree\n\n"}]
            case Edge.MALFORMED:
                if self._complaint != "tool":
                    one = {"role": self._complaint, "content": one["content"]}
                return {"role": "assistant", "content": "Trying. call name args"}, [one]
            case _:
                return self.call(ids[0]), [one]

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

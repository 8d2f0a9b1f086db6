"""The conversations of the self-check: a short one for every edge of an episode, and long ones of all edges.

Every text holds a word that no other text holds, so what a template leaves out can be found. It does not know
templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.tokens.model_family import REASONING, example_call

REASONING_WORD = "thoughtword"
"""A word in the reasoning of the sampled turn."""
ASIDE_WORD = "asideword"
"""A word in the text of the sampled turn beside a call."""


class Edge(StrEnum):
    """An edge: what may follow a sampled turn. The first prompt is one too."""

    OPEN = "first prompt"
    CALL = "call -> tool"
    SECOND_CALL = "second call -> tool"
    CALLS = "calls -> tools"
    WORDS_AND_CALL = "words, call -> tool"
    REPLY = "reply -> user"
    REPLY_AFTER_CALL = "call, reply -> user"
    TRUNCATED = "truncated turn -> user"
    EMPTY_RESULT = "call -> empty tool output"
    MULTILINE_RESULT = "call -> tool output of several lines"
    MALFORMED = "malformed call -> tool"
    REASONED_CALL = "reasoning, call -> tool"
    REASONED_SECOND_CALL = "reasoning, second call -> tool"
    REASONED_REPLY = "reasoning, reply -> user"


_LONG_TEXT = "\n".join((*["One of many lines of a long text."] * 60, "lastword\n"))
"""A text of over 2,000 characters."""
_REPLY_WORDS = ("pendingword", "laterword", "secondword", "three", "lastword")
_LATER_RESULT = '{"status": "laterword", "total": 7}'
_SHORT = 4
"""Number of messages of the longest history of a short conversation."""
_ANSWERED_AT_LENGTH = (Edge.MULTILINE_RESULT, Edge.TRUNCATED, Edge.REASONED_REPLY, Edge.REASONED_SECOND_CALL)
"""Edges that get a long text as the answer in long conversations."""
_REASONED = (Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL, Edge.REASONED_REPLY)
LONG_CONVERSATIONS: Sequence[Sequence[Edge]] = tuple(
    tuple(Edge[name] for name in names.upper().split())
    for names in (
        """
        call call multiline_result call malformed malformed reply call calls words_and_call empty_result reply truncated
        """,
        "reply reply truncated reply call",
        """
        malformed malformed calls reasoned_call reasoned_second_call call multiline_result reasoned_call malformed
        reasoned_reply reasoned_call empty_result words_and_call reasoned_reply call
        """,
    )
)
"""Three conversations: one of calls, one of users alone, one of turns that reason.

With the short conversations they hold each edge three times or more, in orders that episodes take.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A history, the turn that was sampled after it, and the replies to that turn."""

    history: Sequence[Message]
    turn: Message
    replies: Sequence[Message]
    reply_words: Sequence[str]
    """Words of the replies that must show in the bridge."""
    truncated: bool = False
    """Whether the turn ended without a stop token."""
    beside: str = ""
    """A word of the turn beside its call or reply, which some templates leave out."""

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        return [*self.history, self.turn, *self.replies]


class Conversations:
    """Conversations with one set of tools."""

    def __init__(
        self, tools: Sequence[Json], complaint_role: str = "tool", think: tuple[str, str] = ("<think>", "</think>")
    ) -> None:
        """`complaint_role` answers a malformed call; `think` stands around reasoning in a turn's text."""
        self.tools = list(tools)
        self._complaint_role = complaint_role
        self._think = think
        self._tool = str(tools[0]["function"]["name"]) if tools else "sample"
        self.user_word = "#W123"
        """In the user's first message."""
        self.opening: list[Message] = [
            {"role": "system", "content": "You are an agent.\n\nBe brief (systemword)."},
            {"role": "user", "content": f"Hello, where is my order {self.user_word}?"},
        ]
        self.prompt_words: Mapping[str, Sequence[str]] = {
            "the system prompt": ["systemword"],
            "the user's message": [self.user_word],
            "the tools": [str(tool["function"]["name"]) for tool in tools],
        }
        """Words that the first prompt must show, by their origin."""
        self.words_shown_once: Sequence[str] = ("systemword", *self.prompt_words["the tools"][1:])
        """Words that nothing after the first prompt repeats: of the system prompt, and of tools that are not called."""

    def short(self, edge: Edge, tags: bool = True) -> Iterator[Exchange]:
        """Short conversations over the edge, one of which must do. `tags`: also with reasoning in tags."""
        for form in ("key", *["tags"] * tags) if edge in _REASONED else ("",):
            history = list(self.opening)
            if edge in (Edge.SECOND_CALL, Edge.REPLY_AFTER_CALL, Edge.REASONED_SECOND_CALL, Edge.REASONED_REPLY):
                history += [self.reason(self.call(), form, "formerword"), self.result()]
            yield self.after(history, edge, form)

    def after(self, history: Sequence[Message], edge: Edge, form: str) -> Exchange:
        """An exchange over the edge after this history. `form`: "key" or "tags", where the edge's turn reasons."""
        turn, replies = self._turn(edge, sum(message["role"] == "tool" for message in history))
        if len(history) > _SHORT and edge in _ANSWERED_AT_LENGTH:
            replies = [{**replies[0], "content": f"{replies[0]['content']}\n{_LONG_TEXT}"}]
        if edge in _REASONED:
            turn = self.reason(turn, form)
        words = [word for word in _REPLY_WORDS if any(word in reply["content"] for reply in replies)]
        shown = f"{turn.get(REASONING)}{turn['content']}"
        beside = next((word for word in (REASONING_WORD, ASIDE_WORD) if word in shown), "")
        truncated = edge is Edge.TRUNCATED
        return Exchange(
            history=history, turn=turn, replies=replies, reply_words=words, truncated=truncated, beside=beside
        )

    def edges_of(self, edge: Edge, exchange: Exchange) -> Sequence[Edge]:
        """The edges that an exchange of `edge` counts for after its history, the most special one first.

        A turn that reasons counts only for the edges that reason. Any other turn counts for its own kind. It also
        counts for a later call or reply when tools have answered before, and for the turns that reason when one of
        those came before.
        """
        after_tools = any(message["role"] == "tool" for message in exchange.history)
        if exchange.replies[0]["role"] == "user":
            plain, reasoned = Edge.REPLY_AFTER_CALL if after_tools else Edge.REPLY, Edge.REASONED_REPLY
        elif after_tools:
            plain, reasoned = Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL
        else:
            plain, reasoned = Edge.CALL, Edge.REASONED_CALL
        if edge in _REASONED:
            return [reasoned]
        found: list[Edge] = [] if edge in (Edge.CALL, Edge.REPLY) else [edge]
        if any(REASONING_WORD in f"{message.get(REASONING)}{message['content']}" for message in exchange.history):
            found.append(reasoned)
        if after_tools or not found:
            found.append(plain)
        return found

    def plainer(self, exchange: Exchange) -> Exchange:
        """The same exchange as the first turn of a conversation, and without words beside its calls."""
        if not exchange.turn.get("tool_calls"):
            return replace(exchange, history=self.opening)
        return replace(exchange, history=self.opening, turn={**exchange.turn, "content": ""})

    def _turn(self, edge: Edge, n: int) -> tuple[Message, list[Message]]:
        ids = [f"call{n + more:05}" for more in range(3)]
        one = self.result(ids[0])
        match edge:
            case Edge.REPLY | Edge.REPLY_AFTER_CALL | Edge.TRUNCATED | Edge.REASONED_REPLY:
                return self.reply(), [{"role": "user", "content": "Thank you. And the secondword one?"}]
            case Edge.CALLS:
                return self.call(*ids), [one, *(self.result(id, _LATER_RESULT) for id in ids[1:])]
            case Edge.WORDS_AND_CALL:
                return self.call(ids[0]) | {"content": f"I look it up ({ASIDE_WORD})."}, [one]
            case Edge.EMPTY_RESULT:
                return self.call(ids[0]), [one | {"content": ""}]
            case Edge.MULTILINE_RESULT:
                return self.call(ids[0]), [one | {"content": "\n\n one\n\ttwo \r\nthree\n\n"}]
            case Edge.MALFORMED:
                if self._complaint_role != "tool":
                    one = {"role": self._complaint_role, "content": one["content"]}
                return {"role": "assistant", "content": "Trying. call name args"}, [one]
            case _:
                return self.call(ids[0]), [one]

    def call(self, *ids: str) -> Message:
        calls = [example_call(self._tool, {"x": "1"}, id)["tool_calls"][0] for id in ids or ("call00000",)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def reply(self) -> Message:
        return {"role": "assistant", "content": "It is on its way."}

    def result(self, id: str = "call00000", content: str = '{"status": "pendingword", "total": 19.5}') -> Message:
        return {"role": "tool", "tool_call_id": id, "content": content}

    def reason(self, turn: Message, form: str, word: str = REASONING_WORD) -> Message:
        """The turn after some reasoning: under its key, or in tags for a template that only knows those."""
        if form == "key":
            return {**turn, REASONING: f"They want the {word} order."}
        if form == "tags":
            before, after = self._think
            return {**turn, "content": f"{before}\nThey want the {word} order.\n{after}\n\n{turn['content']}"}
        return turn

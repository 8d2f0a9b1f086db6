"""The conversations of the self-check: a short one for every edge of an episode, and long ones of
all edges.

Every text holds a word that no other text holds, so what a template leaves out can be found. It
does not know templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rollq.events import Message
from rollq.job import Json
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
    ASKED = "reply -> user, user"
    ASKED_AFTER_CALL = "call -> tool, user"
    REASONED_CALL = "reasoning, call -> tool"
    REASONED_SECOND_CALL = "reasoning, second call -> tool"
    REASONED_REPLY = "reasoning, reply -> user"


WITHOUT_TOOLS = (Edge.OPEN, Edge.REPLY, Edge.TRUNCATED, Edge.ASKED, Edge.REASONED_REPLY)
"""The edges of an episode in which the template shows no tools."""
_LONG_TEXT = "\n".join((*["One of many lines of a long text."] * 60, "lastword\n"))
"""A text of over 2,000 characters."""
_ASK: Message = {"role": "user", "content": "Before you go on: what is the askedword?"}
"""A context's question, behind the replies to a turn."""
_REPLY_WORDS = ("pendingword", "laterword", "secondword", "three", "lastword", "askedword")
_LATER_RESULT = '{"status": "laterword", "total": 7}'
_SHORT = 4
"""Number of messages of the longest history of a short conversation."""
_ANSWERED_AT_LENGTH = (
    Edge.MULTILINE_RESULT,
    Edge.TRUNCATED,
    Edge.REASONED_REPLY,
    Edge.REASONED_SECOND_CALL,
)
"""Edges that get a long text as the answer in long conversations."""
_REASONED = (Edge.REASONED_CALL, Edge.REASONED_SECOND_CALL, Edge.REASONED_REPLY)
_WORDS_ALONE = (Edge.REPLY, Edge.REPLY_AFTER_CALL, Edge.TRUNCATED, Edge.REASONED_REPLY)
"""Edges whose turns are words for the user."""
_RESULTS = {Edge.EMPTY_RESULT: "", Edge.MULTILINE_RESULT: "\n\n one\n\ttwo \r\nthree\n\n"}
"""Edges with a tool result of their own."""
LONG_CONVERSATIONS: Sequence[Sequence[Edge]] = tuple(
    tuple(Edge[name] for name in names.upper().split())
    for names in (
        """
        call call multiline_result call malformed malformed reply call calls words_and_call \
empty_result reply truncated
        """,
        "reply reply truncated reply call",
        """
        malformed malformed calls reasoned_call reasoned_second_call call multiline_result \
reasoned_call malformed
        reasoned_reply reasoned_reply reasoned_call empty_result words_and_call reasoned_reply call
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
    """True if the turn ended without a stop token."""
    turn_words: Sequence[str] = ()
    """Words of the turn that some templates leave out: of its calls, beside them, and of its
    reasoning.
    """

    @property
    def messages(self) -> list[Message]:
        """The conversation with the turn and its replies."""
        return [*self.history, self.turn, *self.replies]


class Conversations:
    """Conversations with one set of tools."""

    def __init__(
        self,
        tools: Sequence[Json],
        complaint_role: str = "tool",
        think: tuple[str, str] = ("<think>", "</think>"),
    ) -> None:
        """`complaint_role` answers a malformed call; `think` stands around reasoning in a turn's
        text.
        """
        self.tools = list(tools)
        self.edges: Sequence[Edge] = tuple(Edge) if tools else WITHOUT_TOOLS
        """The edges that an episode with these tools may take."""
        self._complaint_role = complaint_role
        self._think = think
        names = [str(tool["function"]["name"]) for tool in tools]
        self._called = names[:2] or ["sample"]
        self.user_word = "#W123"
        """A word of the user's first message."""
        self.opening: list[Message] = [
            {"role": "system", "content": "You are an agent.\n\nBe brief (systemword)."},
            {"role": "user", "content": f"Hello, where is my order {self.user_word}?"},
        ]
        self.prompt_words: Mapping[str, Sequence[str]] = {
            "the system prompt": ["systemword"],
            "the user's message": [self.user_word],
            "the tools": names,
        }
        """Words that the first prompt must show, by their origin."""
        texts = [str(tool["function"].get("description", "")) for tool in tools]
        described = [text.partition("\n")[0] for text in texts]
        self.words_shown_once: Sequence[str] = ("systemword", *filter(None, described), *names[2:])
        """Words that nothing after the first prompt repeats: of the system prompt, and of the
        tools.
        """

    def forms(self, edge: Edge, tags: bool = True) -> Sequence[str]:
        """The forms of reasoning in which the edge may be taken; one of them must do. `tags`: also
        in tags.
        """
        if edge not in _REASONED:
            return ("",)
        return ("key", "tags") if tags else ("key",)

    def short(self, edge: Edge, form: str) -> Iterator[Exchange]:
        """Short conversations over the edge; all must do. `form`: one of `forms`."""
        history = list(self.opening)
        if edge in (
            Edge.SECOND_CALL,
            Edge.REPLY_AFTER_CALL,
            Edge.REASONED_SECOND_CALL,
            Edge.REASONED_REPLY,
        ):
            history += self._former(form)
        yield self.after(history, edge, form)
        if edge is Edge.REASONED_REPLY:
            # Some templates leave out reasoning only right behind a user's message.
            yield self.after(self.opening, edge, form)

    def _former(self, form: str) -> list[Message]:
        """A turn that reasons, and its reply."""
        if self.tools:
            return [self.reason(self.call(), form, "formerword"), self.result()]
        return [
            self.reason(self.reply(), form, "formerword"),
            {"role": "user", "content": "Go on."},
        ]

    def after(self, history: Sequence[Message], edge: Edge, form: str) -> Exchange:
        """An exchange over the edge after this history. `form`: "key" or "tags", where the edge's
        turn reasons.
        """
        turn, replies = self._turn(edge, sum(message["role"] == "tool" for message in history))
        if len(history) > _SHORT and edge in _ANSWERED_AT_LENGTH:
            replies = [{**replies[0], "content": f"{replies[0]['content']}\n{_LONG_TEXT}"}]
        if edge in _REASONED:
            turn = self.reason(turn, form)
        words = [
            word for word in _REPLY_WORDS if any(word in reply["content"] for reply in replies)
        ]
        shown = f"{turn.get(REASONING)}{turn['content']}"
        turn_words = [word for word in (REASONING_WORD, ASIDE_WORD) if word in shown]
        turn_words += [call["function"]["arguments"]["x"] for call in turn.get("tool_calls", ())]
        return Exchange(
            history=history,
            turn=turn,
            replies=replies,
            reply_words=words,
            truncated=edge is Edge.TRUNCATED,
            turn_words=turn_words,
        )

    def edges_of(self, edge: Edge, exchange: Exchange) -> Sequence[Edge]:
        """The edges that an exchange of `edge` counts for after its history, the most special one
        first.

        A turn that reasons counts only for the edges that reason. Any other turn counts for its own
        kind. It also counts for a later call or reply when tools have answered before, and for the
        turns that reason when one of those came before.
        """
        after_tools = any(message["role"] == "tool" for message in exchange.history)
        plain, reasoned = _kinds(exchange.replies[0]["role"] == "user", after_tools)
        if edge in _REASONED:
            return [reasoned]
        edges: list[Edge] = [] if edge in (Edge.CALL, Edge.REPLY) else [edge]
        if any(map(_reasons, exchange.history)):
            edges.append(reasoned)
        if after_tools or not edges:
            edges.append(plain)
        return edges

    def plainer(self, exchange: Exchange) -> Exchange:
        """The same exchange as the first turn of a conversation, and without words beside its
        calls.
        """
        if not exchange.turn.get("tool_calls"):
            return replace(exchange, history=self.opening)
        return replace(exchange, history=self.opening, turn={**exchange.turn, "content": ""})

    def _turn(self, edge: Edge, n: int) -> tuple[Message, list[Message]]:
        """The turn of an edge and its replies. `n`: the number of calls before it."""
        if edge in (*_WORDS_ALONE, Edge.ASKED):
            thanks: Message = {"role": "user", "content": "Thank you. And the secondword one?"}
            return self.reply(), [thanks, _ASK] if edge is Edge.ASKED else [thanks]
        ids = [f"call{n + more:05}" for more in range(3)]
        result = self.result(ids[0])
        if edge is Edge.CALLS:
            later = [self.result(id, _LATER_RESULT) for id in ids[1:]]
            return self.call(*ids), [result, *later]
        if edge is Edge.MALFORMED:
            if self._complaint_role != "tool":
                result = {"role": self._complaint_role, "content": result["content"]}
            return {"role": "assistant", "content": "Trying. call name args"}, [result]
        call = self.call(ids[0])
        if edge is Edge.WORDS_AND_CALL:
            call["content"] = f"I look it up ({ASIDE_WORD})."
        if edge in _RESULTS:
            result["content"] = _RESULTS[edge]
        return call, [result, _ASK] if edge is Edge.ASKED_AFTER_CALL else [result]

    def call(self, *ids: str) -> Message:
        """A turn with a call for each id, of another tool and with other arguments than the call
        before it.
        """
        calls = []
        for id in ids or ("call00000",):
            n = int(id[-5:]) % 2
            name = self._called[n % len(self._called)]
            calls += example_call(name, {"x": f"value{n}"}, id)["tool_calls"]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def reply(self) -> Message:
        return {"role": "assistant", "content": "It is on its way."}

    def result(
        self, id: str = "call00000", content: str = '{"status": "pendingword", "total": 19.5}'
    ) -> Message:
        return {"role": "tool", "tool_call_id": id, "content": content}

    def reason(self, turn: Message, form: str, word: str = REASONING_WORD) -> Message:
        """The turn after some reasoning: under its key, or in tags for a template that only knows
        those.
        """
        reasoning = f"They want the {word} order."
        if form == "key":
            return {**turn, REASONING: reasoning}
        if form == "tags":
            before, after = self._think
            return {**turn, "content": f"{before}\n{reasoning}\n{after}\n\n{turn['content']}"}
        return turn


def _kinds(is_reply: bool, after_tools: bool) -> tuple[Edge, Edge]:
    """The edges of a plain turn and of one that reasons: replies to the user, or calls."""
    if is_reply:
        return (Edge.REPLY_AFTER_CALL if after_tools else Edge.REPLY), Edge.REASONED_REPLY
    if after_tools:
        return Edge.SECOND_CALL, Edge.REASONED_SECOND_CALL
    return Edge.CALL, Edge.REASONED_CALL


def _reasons(message: Message) -> bool:
    return REASONING_WORD in f"{message.get(REASONING)}{message['content']}"

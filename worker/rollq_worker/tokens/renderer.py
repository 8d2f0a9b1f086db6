"""A chat template as token ids: the first prompt once, then only bridges.

A bridge is what the template writes between the end of a sampled turn and the next assistant
header. It is rendered over a short made-up conversation and cut after the turn's stop token.
Sampled ids are never rendered again.

It does not know environments or engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from weakref import WeakValueDictionary

from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.protocols import ReadTurn, TurnRefused
from rollq_worker.tokens.family_detection import family_of, shows_tools
from rollq_worker.tokens.images import ImageTokens
from rollq_worker.tokens.injection_guard import ControlTokens, Guard
from rollq_worker.tokens.made_up_conversation import MadeUpConversation, Preamble
from rollq_worker.tokens.model_family import Family
from rollq_worker.tokens.template_messages import (
    SHORT_REPLY,
    call_id,
    for_template,
    with_missing_calls,
)
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.tokens.turn_comparison import says_the_same
from rollq_worker.toolcalls import readers_for
from rollq_worker.toolcalls.pieces import Reader, without_calls


@dataclass(frozen=True, slots=True)
class Continuation:
    """The template's own text of a conversation whose last turn is answered."""

    before_replies: str
    """The text up to and including the token that ends the turn."""
    full: str
    """The text with the replies and the next assistant header. It begins with `before_replies`
    unless `rewritten`.
    """
    rewritten: str
    """The reason why the template's text of earlier turns is another one once the replies follow,
    or "".
    """


class ChatRenderer:
    """Implements protocols.Renderer, where its methods are described. It holds no state of an
    episode, so threads may share it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Json] = (),
        family: Family | None = None,
        preamble: Preamble | None = None,
    ) -> None:
        """`tools` give arguments their types, and never change. Made-up calls are of the first
        tool. `preamble`: None takes the first one with which the template renders; the self-check
        finds the right one.

        Raises JobFailure for an unknown family, and for a template that renders nothing.
        """
        self.tokenizer = tokenizer
        self.family = family or family_of(tokenizer, tools=bool(tools))
        self.tools = list(tools)
        ids = tokenizer.added_tokens
        header_stops = self.family.header_stops
        self._header_stops = {ids[text]: header_stops[text] for text in header_stops if text in ids}
        self.stop_ids: Sequence[int] = _stop_ids(tokenizer, self.family)
        self.vocab_size: int = tokenizer.vocab_size
        self._controls = ControlTokens(tokenizer)
        self._images = ImageTokens(tokenizer)
        self._tools_prompt = None if shows_tools(tokenizer) else self.family.tools_prompt
        self._made_up = MadeUpConversation(
            tokenizer, self.family, self.tools, self._controls, preamble
        )
        self._tools_guard = Guard(self._controls)
        self._hidden_tools: list[Json] = self._tools_guard.hide(self.tools)
        self._opened: WeakValueDictionary[str, array[int]] = WeakValueDictionary()
        """The first prompts in use, by their messages."""
        self._end_ids = frozenset((*self.stop_ids, *(ids[end] for end in self._made_up.ends)))
        reader = readers_for(tokenizer.added_tokens)[self.family.parser]
        self.reader: Reader = reader if self.tools else without_calls(reader)
        self._thinking = self._starts_in_reasoning()

    def _starts_in_reasoning(self) -> bool | None:
        """True if turns start inside reasoning because the assistant header opens it. None if it
        does so behind some replies only.
        """
        headers = (self._made_up.header, self._made_up.header_after_call)
        opens = {text.rstrip().endswith(self.reader.think[0]) for text in headers if text}
        return opens.pop() if len(opens) == 1 else None

    @property
    def preamble(self) -> Preamble:
        """The preamble of the turns over which bridges are rendered."""
        return self._made_up.preamble

    def open(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        """The first prompt, generation prompt included. Raises JobFailure when the template cannot
        do it.

        Episodes of one group share one array, because a thousand of 20 kB count.
        """
        key = json.dumps([messages, None if self._are_usual(tools) else tools])
        ids = self._opened.get(key)
        if ids is None:
            ids = self._open(messages, tools)
            self._opened[key] = ids
        return ids

    def _open(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        # The copies are gone before the text is encoded, where a thousand threads may wait. All
        # episodes of an environment share the long system prompt.
        text, guard = self._hidden_prompt(messages, tools)
        return self._images.expand(guard.encode(text, remember=True), messages)

    def _hidden_prompt(
        self, messages: Sequence[Message], tools: Sequence[Json]
    ) -> tuple[str, Guard]:
        guard, hidden = self._hide_tools(tools)
        shown = [guard.hide(message) for message in self.shown(messages)]
        return self._made_up.render(self._with_tools(shown, hidden), hidden), guard

    def _hide_tools(self, tools: Sequence[Json]) -> tuple[Guard, list[Json]]:
        """A guard for a rendering with these tools, and the tools as it hides them."""
        if self._are_usual(tools):
            return Guard(self._controls, self._tools_guard), self._hidden_tools
        guard = Guard(self._controls)
        return guard, guard.hide(list(tools))

    def _are_usual(self, tools: Sequence[Json]) -> bool:
        """True if they are the renderer's own, which never change."""
        return len(tools) == len(self.tools) and all(map(is_, tools, self.tools))

    def prompt(self, messages: Sequence[Message], tools: Sequence[Json]) -> str:
        """The text that the template writes for `open`. Raises JobFailure."""
        return self._made_up.render(self._with_tools(self.shown(messages), tools), tools)

    def rewritten(
        self,
        messages: Sequence[Message],
        sampled: array[int],
        replies: Sequence[Message],
        tools: Sequence[Json],
    ) -> array[int] | None:
        """See the protocol. Costs two or three renderings of the whole conversation."""
        try:
            if self._says_the_same(messages, sampled, replies, tools):
                return None
            return self.open([*messages, *replies], tools)
        except JobFailure as e:
            # If the replies are at fault this raises, too.
            self.open([*messages[:-1], self._harmless(messages[-1]), *replies], tools)
            raise TurnRefused(str(e)) from e

    def reopen(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        try:
            return self.open(messages, tools)
        except JobFailure as e:
            harmless = [self._harmless(m) if m["role"] == "assistant" else m for m in messages]
            self.open(harmless, tools)
            raise TurnRefused(str(e)) from e

    def _harmless(self, turn: Message) -> Message:
        """A turn that templates take, in place of this one."""
        harmless = {"name": self._made_up.tool_name, "arguments": "{}"}
        calls = [{**call, "function": harmless} for call in turn.get("tool_calls", ())]
        return {"role": "assistant", "content": "", "tool_calls": calls} if calls else SHORT_REPLY

    def _says_the_same(
        self,
        messages: Sequence[Message],
        sampled: array[int],
        replies: Sequence[Message],
        tools: Sequence[Json],
    ) -> bool:
        """True if the template's own text is the prompt of the turn, the turn as it was sampled,
        and the bridge.
        """
        guard, hidden = self._hide_tools(tools)
        bridge_guard = Guard(self._controls)
        shown = [guard.hide(message) for message in self.shown([*messages, *replies])]
        before = shown[: len(self.shown(messages[:-1]))]
        prompt = self._made_up.render(self._with_tools(before, hidden), hidden)
        full = self._made_up.render(self._with_tools(shown, hidden), hidden)
        if not full.startswith(prompt):
            return False
        text, head, end = self._made_up.answer(messages[-1], replies, bridge_guard)
        bridge = bridge_guard.restore(text[len(head) - len(end) :])
        after = guard.restore(full[len(prompt) :])
        if not head or not after.endswith(bridge):
            return False
        stopped = self.is_end(sampled[-1])
        if stopped and sampled[-1] != self.tokenizer.added_tokens[end]:
            return False
        rendered = after[: -len(bridge)]
        return says_the_same(self.reader, self._text(sampled), rendered, self._thinking, self.tools)

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """A complete conversation as the template takes it. Raises JobFailure."""
        if self._made_up.needs_calls:
            messages = with_missing_calls(messages, self._made_up.tool_name)
        return for_template(messages, self.family)

    def extend(
        self,
        messages: Sequence[Message],
        replies: Sequence[Message],
        tools: Sequence[Json],
        *rendered: str,
    ) -> Continuation:
        """The template's continuation of `messages`, the last of which is the sampled turn.

        `rendered`: the results of `prompt` without that turn and with the replies, if the caller
        has them. Raises JobFailure.
        """
        render = self._made_up.render
        shown = self._with_tools(self.shown([*messages, *replies]), tools)
        before = shown[: len(shown) - len(replies)]
        prompt, full = rendered or (render(before[:-1], tools), render(shown, tools))
        head, end = self._ended_turn(render(before, tools, header=False), prompt, full)
        rewritten = ""
        if not head.startswith(prompt):
            rewritten = "the template writes the prompt of a turn differently once the turn follows"
        elif not end or not full.startswith(head):
            rewritten = "the template rewrites earlier turns when this follows"
        return Continuation(head, full, rewritten)

    def _ended_turn(self, text: str, prompt: str, full: str) -> tuple[str, str]:
        """Cuts a conversation behind the end token of its last turn, behind `prompt`.

        Returns it and the token, "" if there is none. `full` is the same conversation with replies.
        """
        ends = self._made_up.ends
        cut, end = self._made_up.last_end(text)
        if cut > len(prompt):
            head = text[:cut]
            turn = head[: -len(end)].rstrip()
            if not full.startswith(head) and len(turn) > len(prompt) and turn.endswith(ends):
                return turn, end  # the last token ends the conversation, which goes on
            return head, end
        # The token that ends this turn is the next header, which is not written yet.
        head = text.rstrip("\n")
        end = next((end for end in ends if full.startswith(head + end)), "")
        return head + end, end

    def read(self, ids: array[int]) -> ReadTurn:
        return self.reader(self._text(ids), self._thinking, self.tools)

    def bridge(
        self, message: Message, replies: Sequence[Message], stop: int | None = None
    ) -> array[int]:
        """See the protocol. `stop`: None is the one that `close` gives. All replies to one turn
        (several tool results) come in one call. Raises JobFailure for roles that may not follow,
        and when the end of the turn cannot be found.
        """
        roles = [str(reply.get("role")) for reply in replies]
        if not roles or not self.family.reply_roles.issuperset(roles):
            allowed = " or ".join(sorted(self.family.reply_roles))
            raise self._refusal(roles, f"a turn is answered by {allowed}")
        if stop is not None and roles[0] not in self.replying_roles(stop):
            token = self.tokenizer.decode([stop])
            role = self._header_stops[stop]
            raise self._refusal(
                roles, f"the turn ended with {token}, which only a {role} may answer"
            )
        # With the end token, which may swallow white space behind it. The token is left out again
        # if the turn has it; a header that the turn does not end with belongs to the bridge.
        ids = self._answer(message, replies)
        turn_has_it = stop is None or ids[0] not in self._header_stops or stop == ids[0]
        return ids[1:] if turn_has_it else ids

    def _answer(self, message: Message, replies: Sequence[Message]) -> array[int]:
        """The ids from the token that ends the turn to the end of the next assistant header."""
        guard = Guard(self._controls)
        text, head, end = self._made_up.answer(message, replies, guard)
        if not head:
            roles = [str(reply.get("role")) for reply in replies]
            problem = "the template does not end the assistant's turn before the reply"
            raise self._refusal(roles, problem)
        return self._images.expand(guard.encode(text[len(head) - len(end) :]), replies)

    def close(self, message: Message, replies: Sequence[Message]) -> int:
        end = self._made_up.answer(message, replies, Guard(self._controls)).end
        return self.tokenizer.added_tokens[end] if end else self.stop_ids[0]

    def replying_roles(self, stop: int) -> frozenset[str]:
        if stop in self._header_stops:
            return frozenset({self._header_stops[stop]})
        return self.family.reply_roles

    def complaint_role(self, stop: int | None) -> str:
        if stop in self._header_stops:
            return self._header_stops[stop]
        return "user" if self._header_stops or not self.tools else "tool"

    def call_id(self, id: str, name: str, n: int) -> str:
        return call_id(self.family, id or f"call_{n}", name, n)

    @property
    def image_token(self) -> int:
        return self._images.placeholder

    def image_length(self, width: int, height: int) -> int:
        return self._images.length(width, height)

    def is_end(self, id: int) -> bool:
        return id in self._end_ids

    def _text(self, ids: array[int]) -> str:
        """The text of a sampled turn without its stop token."""
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return self.tokenizer.decode(ids)

    def _with_tools(self, messages: list[Message], tools: Sequence[Json]) -> list[Message]:
        """The messages with the tools in the system prompt, where the template does not list them
        itself.
        """
        if self._tools_prompt is None or not tools:
            return messages
        text = self._tools_prompt.write(tools)
        if messages and messages[0]["role"] == "system":
            return [{**messages[0], "content": messages[0]["content"] + text}, *messages[1:]]
        return [{"role": "system", "content": text.lstrip()}, *messages]

    def _refusal(self, roles: Sequence[str], why: str) -> JobFailure:
        edge = f"assistant -> {', '.join(roles) or 'nothing'} -> assistant"
        return JobFailure(f"{self.tokenizer.name}: the edge {edge} is not supported: {why}")


def _stop_ids(tokenizer: Tokenizer, family: Family) -> Sequence[int]:
    """The family's stop tokens, then those that the model's files name. Never an end token that
    only the template writes.
    """
    ids = tokenizer.added_tokens
    stops = [ids[text] for text in family.stops if text in ids]
    written_only = [ids.get(end) for end in family.template_ends]
    eos = [id for id in tokenizer.eos_ids if id not in written_only]
    return tuple(dict.fromkeys((*stops, *eos)))

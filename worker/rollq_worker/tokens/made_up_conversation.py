"""The made-up conversation over which bridges are rendered: a preamble, one turn, and its replies.

It takes the place of the episode's history, so a bridge depends neither on that history nor on how
the template would rewrite it. It does not know the tokens of an episode.
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.injection_guard import ControlTokens, Guard, any_of
from rollq_worker.tokens.model_family import Family, example_call
from rollq_worker.tokens.template_messages import (
    call_id,
    for_template,
    in_known_roles,
    short_exchange,
)
from rollq_worker.tokens.tokenizer import Tokenizer

_ID = "zqxjkvbwp"
"""An id, and a text, that occurs nowhere else. Some templates insist on nine characters."""
MAX_HEADS = 4096
"""Number of kinds of turns whose rendering is kept."""


@dataclass(frozen=True, slots=True)
class Preamble:
    """The messages before the turn, besides a user's."""

    system: bool = False
    """A system prompt. Some templates refuse a conversation without one; others move it to the last
    message.
    """
    tools: bool = False
    """Tools. Some templates write replies or headers differently with tools. Rendering them costs
    time.
    """


PREAMBLES = (
    Preamble(),
    Preamble(system=True),
    Preamble(tools=True),
    Preamble(system=True, tools=True),
)


class Answered(NamedTuple):
    """The conversation as the template writes it."""

    text: str
    head: str
    """The text before the bridge; "" where the template does not end the turn before the reply."""
    end: str
    """The end token that closes `head`."""


class MadeUpConversation:
    """Renders turns with their replies after a preamble. Threads may share it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        family: Family,
        tools: Sequence[Json],
        controls: ControlTokens,
        preamble: Preamble | None,
    ) -> None:
        """`preamble`: None takes the first one with which the template renders at all.

        Raises JobFailure for a template that renders nothing.
        """
        self._tokenizer = tokenizer
        self._family = family
        self._all_tools = tools
        self._controls = controls
        self.tool_name = str(tools[0]["function"]["name"]) if tools else "tool"
        """The tool that a turn has called when its call could not be read."""
        self.ends = tuple(
            end for end in (*family.stops, *family.template_ends) if end in tokenizer.added_tokens
        )
        """The tokens with which the template or the model ends a turn."""
        self._heads: dict[str, tuple[str, str]] = {}
        self._no_tools: Sequence[Json] | None = None
        self.preamble, self._base, self.header = self._find_preamble(preamble)
        hidden = Guard(controls).hide(self._tools())
        self._turn_starts = len(self.render(self._base, hidden, header=False))
        self.header_after_call = self._render_after_call()
        """The conversation behind a call and its result; "" where the template refuses one."""
        self.needs_calls = not self._answers_alike()
        """The template writes a tool's result otherwise, or not at all, where the turn called
        nothing.
        """
        self._shows_ids = _ID in self.header_after_call or bool(family.call_id_format)
        self._numbers_calls = self._counts_calls()

    def render(
        self, messages: Sequence[Message], tools: Sequence[Json] = (), header: bool = True
    ) -> str:
        """The template's text. Raises JobFailure."""
        kwargs = self._family.template_kwargs
        messages = in_known_roles(messages, self._family)
        return self._tokenizer.render(
            messages, tools or self._no_tools, add_generation_prompt=header, **kwargs
        )

    def answer(self, message: Message, replies: Sequence[Message], guard: Guard) -> Answered:
        """The turn `message` and its replies. Raises JobFailure when the template refuses them."""
        calls = message.get("tool_calls") or ()
        if not self._family.one_call or len(calls) < 2:
            return self._answer(message, replies, guard)
        last = len(calls) - 1
        parts = []
        for n, call in enumerate(calls):
            own_replies = [replies[n]] if n < last else replies[last:]
            turn = {**message, "tool_calls": [call]}
            parts.append(self._answer(turn, own_replies, guard, header=n == last))
        if not all(part.head for part in parts):
            return Answered("", "", "")
        behind_heads = "".join(part.text[len(part.head) :] for part in parts)
        return parts[0]._replace(text=parts[0].head + behind_heads)

    def _answer(
        self, message: Message, replies: Sequence[Message], guard: Guard, header: bool = True
    ) -> Answered:
        tools = guard.hide(self._tools())  # first, so that their marks are the same ones each time
        shown = for_template(
            short_exchange(message, replies, self.tool_name, self._shows_ids), self._family
        )
        turn, *hidden = [guard.hide(message) for message in shown]
        if not message.get("tool_calls") and not self.needs_calls:
            for reply in hidden:  # the call is made up only here, and so is its name
                reply.pop("name", None)
        if not self._numbers_calls:
            text = self.render([*self._base, turn, *hidden], tools, header)
            return Answered(text, *self._head(turn, hidden, tools, text, guard))
        turn, ids = self._mark_calls(turn, guard)
        counted = re.compile(rf"(?<!\w)(?:{any_of(ids).pattern})(?!\w)")
        for reply in hidden:  # in the words of others such a number is not an id
            reply["content"] = guard.hide_matches(counted, reply["content"])
        text = self.render([*self._base, turn, *hidden], tools, header)
        head, end = self._head(turn, hidden, tools, text, guard)

        def with_ids(part: str) -> str:
            return counted.sub(lambda match: ids[match[0]], part)

        return Answered(with_ids(text), with_ids(head), end)

    def _mark_calls(self, turn: Message, guard: Guard) -> tuple[Message, Mapping[str, str]]:
        """The turn with a mark for the name of each call, and the right ids by those that the
        template then makes up.

        It counts the calls of the conversation, and here there are none before.
        """
        form = self._family.call_id_format
        calls = []
        ids: dict[str, str] = {}
        for n, call in enumerate(turn.get("tool_calls") or ()):
            mark = guard.mark(guard.restore(call["function"]["name"]))
            number = re.search(r"\d+$", call["id"])
            own_n = int(number[0]) if number else n
            ids[form.format(name=mark, n=n)] = form.format(name=mark, n=own_n)
            calls.append({**call, "function": {**call["function"], "name": mark}})
        if not calls:
            return turn, ids
        return {**turn, "tool_calls": calls}, ids

    def last_end(self, text: str) -> tuple[int, str]:
        """The place behind the last end token of a text, and that token. 0 and "" for a text
        without one.
        """
        last = (0, "")
        for end in self.ends:
            start = text.rfind(end)
            if start >= 0:
                last = max(last, (start + len(end), end))
        return last

    def _tools(self) -> Sequence[Json]:
        return self._all_tools if self.preamble.tools else ()

    def _head(
        self,
        turn: Message,
        replies: Sequence[Message],
        tools: Sequence[Json],
        text: str,
        guard: Guard,
    ) -> tuple[str, str]:
        """The part of `text` before the bridge, and the end token that closes it; "" and "" if it
        has none.
        """
        key = json.dumps([turn, [{**reply, "content": ""} for reply in replies]])
        head, end = self._heads.get(key, ("", ""))
        if not head or not text.startswith(head):
            head, end = self._find_head(turn, replies, tools, text, guard.mark())
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[key] = (head, end)
        return head, end

    def _find_head(
        self, turn: Message, replies: Sequence[Message], tools: Sequence[Json], text: str, mark: str
    ) -> tuple[str, str]:
        """The turn with its end, as the template writes it when it is the last one. If the template
        writes it differently before a reply, the text up to the last end token before the first
        reply's content.
        """
        replies = [{**replies[0], "content": mark}, *replies[1:]]
        conversation = self.render([*self._base, turn, *replies], tools)
        if mark not in conversation:
            return "", ""
        before = conversation.partition(mark)[0]
        alone = self.render([*self._base, turn], tools, header=False)
        cut, end = self.last_end(alone)
        head = alone[:cut]
        if cut > self._turn_starts and before.startswith(head) and text.startswith(head):
            return head, end
        cut, end = self.last_end(before)
        if cut and text.startswith(before[:cut]):
            return before[:cut], end
        return "", ""

    def _find_preamble(self, preamble: Preamble | None) -> tuple[Preamble, Sequence[Message], str]:
        refusal: JobFailure | None = None
        for option in PREAMBLES if preamble is None else (preamble,):
            self.preamble = option
            base: list[Message] = [{"role": "system", "content": "s"}] if option.system else []
            base.append({"role": "user", "content": "u"})
            # A template for tool use may walk the list without a test for its presence.
            for no_tools in (None, ()):
                self._no_tools = no_tools
                try:
                    return option, base, self.render(base, self._tools())
                except JobFailure as e:
                    refusal = refusal or e
        raise refusal or JobFailure(f"{self._tokenizer.name}: the chat template renders nothing")

    def _render_after_call(self) -> str:
        result: Message = {"role": "tool", "tool_call_id": _ID, "content": "r"}
        messages = for_template(
            short_exchange(example_call(self.tool_name, id=_ID), [result], ""), self._family
        )
        with contextlib.suppress(JobFailure):
            return self.render([*self._base, *messages], self._tools())
        return ""

    def _counts_calls(self) -> bool:
        """True if the template makes up the ids of calls by counting them, whatever their own ids
        are.
        """
        form = self._family.call_id_format
        if not form:
            return False
        own, counted = (form.format(name=self.tool_name, n=n) for n in (7, 0))
        exchange = [
            example_call(self.tool_name, id=own),
            {"role": "tool", "tool_call_id": own, "content": "r"},
        ]
        with contextlib.suppress(JobFailure):
            text = self.render([*self._base, *for_template(exchange, self._family)], self._tools())
            return counted in text and own not in text
        return False

    def _answers_alike(self) -> bool:
        """True if the template writes a tool's results after turns without calls as it does after
        calls.
        """
        try:
            for again in (False, True):
                if self._after_result(True, again) != self._after_result(False, again):
                    return False
            return True
        except JobFailure:
            return False

    def _after_result(self, with_call: bool, again: bool) -> str:
        """A tool's result and what follows it, after a turn with or without a call. `again`: after
        the second such turn.

        Raises JobFailure when the template refuses the result or leaves it out.
        """
        messages: list[Message] = []
        for n in range(1 + again):
            id = call_id(self._family, f"call{n:05}", self.tool_name, n)
            words: Message = {"role": "assistant", "content": "a"}
            messages.append(example_call(self.tool_name, id=id) if with_call else words)
            content = _ID if n == again else "r"
            messages.append({"role": "tool", "tool_call_id": id, "content": content})
        messages += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}]
        shown = for_template(messages, self._family)
        for message in shown:
            message.pop("name", None)
        text = self.render([*self._base, *shown], self._tools())
        before, result, after = text.partition(_ID)
        if not result:
            raise JobFailure(
                f"the chat template of {self._tokenizer.name} leaves out a tool's result"
            )
        return before[self.last_end(before)[0] :] + result + after

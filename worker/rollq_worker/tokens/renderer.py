"""A chat template as token ids: the first prompt once, then only bridges.

A bridge is what the template puts between the end of a sampled turn and the next assistant header. It is rendered over
a short made-up conversation and cut behind the turn's stop token, so that it depends neither on the history nor on how
the template would rewrite it. Sampled ids are never rendered again. It does not know environments or engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import contextlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from rollq.errors import JobFailure
from rollq.job import Json
from rollq.trajectory import Message
from rollq_worker.protocols import ReadTurn
from rollq_worker.tokens.injection_guard import Controls, Guard
from rollq_worker.tokens.model_family import Family, family_of, probe_call, shows_tools
from rollq_worker.tokens.template_messages import call_id, for_template, stand_in, with_calls
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import PARSERS

_PROBE_ID = "zqxjkvbwp"
"""Nine characters, which some templates insist on, that nothing else spells."""
HEADS = 4096
"""Kinds of turns whose rendering is remembered."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What stands in front of the turn in the made-up conversation, beside a user's message."""

    system: bool = False
    """A system prompt: some templates refuse a conversation without one; others move it to the last message."""
    tools: bool = False
    """The tools: some templates write replies or headers differently with tools; it costs rendering them."""


STAGES = (Stage(), Stage(system=True), Stage(tools=True), Stage(system=True, tools=True))


@dataclass(frozen=True, slots=True)
class Extension:
    """The template's own writing of a turn and its replies, as text."""

    said: str
    """The conversation up to and with the token that ends the turn."""
    full: str
    """The whole conversation with the next assistant header; begins with `said` unless `rewritten` says otherwise."""
    rewritten: str
    """What the template writes differently once the replies follow; "": nothing."""


class ChatRenderer:
    """protocols.Renderer for one tokenizer. Holds no state of an episode: threads may share it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Json] = (),
        family: Family | None = None,
        stage: Stage | None = None,
    ) -> None:
        """`tools` give types to arguments and lend a name to the stand-in for a call that could not be read.

        `stage`: the first one on which the template renders at all when None; `selfcheck` finds the right one.
        Raises JobFailure for an unknown family, and for a template that renders nothing.
        """
        self.tokenizer = tokenizer
        self.family = family or family_of(tokenizer)
        self.tools = list(tools)
        ids = tokenizer.added_tokens
        self._ends = tuple(text for text in (*self.family.stops, *self.family.ends) if text in ids)
        self._shared = {ids[text]: role for text, role in self.family.shared.items() if text in ids}
        never = {ids[text] for text in self.family.ends if text in ids}
        stops = [ids[text] for text in self.family.stops if text in ids]
        eos = [id for id in tokenizer.eos_ids if id not in never]
        self.stop_ids: Sequence[int] = tuple(dict.fromkeys((*stops, *eos)))
        self.vocab_size: int = tokenizer.vocab_size
        self._controls = Controls(tokenizer)
        self._tools_text = None if shows_tools(tokenizer) else self.family.tools_text
        self._heads: dict[str, tuple[str, str]] = {}
        self._tool_name = str(tools[0]["function"]["name"]) if tools else "tool"
        self._no_tools: Sequence[Json] | None = None
        self.stage, self._base, header = self._set(stage)
        self._begun = len(self._render(self._base, Guard(self._controls).hide(self._probe_tools()), header=False))
        after_call = self._after_call()
        self._needs_calls = not self._answers_alike()
        self._ids_shown = _PROBE_ID in after_call or bool(self.family.call_id)
        opens = PARSERS[self.family.parser].think[0]
        inside = {text.rstrip().endswith(opens) for text in (header, after_call) if text}
        self._thinking = inside.pop() if len(inside) == 1 else None
        """Turns start inside reasoning, because the assistant header opens it; None: after some replies only."""

    def open(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        """The first prompt, generation prompt included. Raises JobFailure when the template cannot do it."""
        guard = Guard(self._controls)
        shown = [guard.hide(message) for message in self.shown(messages)]
        hidden = guard.hide(list(tools))
        # All episodes of an environment share the long system prompt.
        return guard.encode(self._render(self._told(shown, hidden), hidden), remember=True)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Json]) -> str:
        """What the template writes for `open`, as text. Raises JobFailure."""
        return self._render(self._told(self.shown(messages), tools), tools)

    def rewrites(self, messages: Sequence[Message], replies: Sequence[Message], tools: Sequence[Json]) -> bool:
        """Whether the template writes the conversation so far, its last turn included, otherwise once replies follow.

        Costs three renderings of the whole conversation. Raises JobFailure when the template cannot do it.
        """
        return bool(self.extend(messages, replies, tools).rewritten)

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """A whole conversation as the template takes it. Raises JobFailure."""
        if self._needs_calls:
            messages = with_calls(messages, self._tool_name)
        return for_template(messages, self.family)

    def extend(
        self, messages: Sequence[Message], replies: Sequence[Message], tools: Sequence[Json], *known: str
    ) -> Extension:
        """How the template continues `messages`, whose last one is the sampled turn. Raises JobFailure.

        `known`: what `prompt` gives without that turn and with the replies, if that was rendered already.
        """
        shown = self._told(self.shown([*messages, *replies]), tools)
        before = shown[: len(shown) - len(replies)]
        prompt, full = known or (self._render(before[:-1], tools), self._render(shown, tools))
        said = self._render(before, tools, header=False)
        cut, end = self._last_end(said)
        if cut > len(prompt):
            said = said[:cut]
            turn = said[: -len(end)].rstrip()
            if not full.startswith(said) and len(turn) > len(prompt) and turn.endswith(self._ends):
                said = turn  # the last end is that of the conversation, which is not over
        else:  # the token that ends this turn is the next header, which the template has not written yet
            said = said.rstrip("\n")
            end = next((end for end in self._ends if full.startswith(said + end)), "")
            said += end
        rewritten = ""
        if not said.startswith(prompt):
            rewritten = "the template writes the prompt of a turn differently once the turn follows"
        elif not end or not full.startswith(said):
            rewritten = "the template rewrites earlier turns when this follows"
        return Extension(said, full, rewritten)

    def read(self, ids: array[int]) -> ReadTurn:
        """Parse a whole sampled turn, stop token included if there is one."""
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return PARSERS[self.family.parser](self.tokenizer.decode(ids), self._thinking, self.tools)

    def bridge(self, message: Message, replies: Sequence[Message], stop: int | None = None) -> array[int]:
        """The tokens from right behind the stop token of the turn `message` to the end of the next assistant header.

        `stop` is the token that ended the turn; None: the one that `close` gives. Replies that belong together (several
        tool results) come in one call. Raises JobFailure for roles that may not follow, and when the template gives no
        clean cut.
        """
        roles = [str(reply.get("role")) for reply in replies]
        if not roles or not self.family.roles.issuperset(roles):
            raise self._refusal(roles, f"a turn is answered by {' or '.join(sorted(self.family.roles))}")
        if stop is not None and not self.answers(stop).issuperset(roles):
            token = self.tokenizer.decode([stop])
            raise self._refusal(roles, f"the turn ended with {token}, which only a {self._shared[stop]} may answer")
        guard = Guard(self._controls)
        real, head, end = self._answered(message, replies, guard)
        if not head:
            raise self._refusal(roles, "the template does not end the assistant's turn before the reply")
        ids = guard.encode(real[len(head) - len(end) :])  # with the end, which may swallow white space behind it
        brought = stop is None or end not in self.family.shared or stop == ids[0]
        return ids[1:] if brought else ids  # a header that the turn did not bring belongs to the bridge

    def close(self, message: Message, replies: Sequence[Message]) -> int:
        """The token to put behind a turn that was cut, so that these replies may follow: the template's own there."""
        _, _, end = self._answered(message, replies, Guard(self._controls))
        return self.tokenizer.added_tokens[end] if end else self.stop_ids[0]

    def answers(self, stop: int) -> frozenset[str]:
        """The roles that may answer a turn which ended with the token `stop`."""
        return frozenset({self._shared[stop]}) if stop in self._shared else self.family.roles

    def complaint_role(self, stop: int | None) -> str:
        """The role in which to tell the policy that its turn, which ended with `stop`, could not be acted on."""
        if stop in self._shared:
            return self._shared[stop]
        return "user" if self._shared else "tool"

    def call_id(self, id: str, name: str, n: int) -> str:
        """What to call the n-th call of an episode, which is of the tool `name`: as the model did, if the template
        takes that."""
        return call_id(self.family, id or f"call_{n}", name, n)

    def is_end(self, id: int) -> bool:
        """Whether the template or the model ends turns with this token."""
        return id in self.stop_ids or any(self.tokenizer.added_tokens[end] == id for end in self._ends)

    def _told(self, messages: list[Message], tools: Sequence[Json]) -> list[Message]:
        """The messages with the tools in the system prompt, where the template does not show them itself."""
        if self._tools_text is None or not tools:
            return messages
        text = self._tools_text.write(tools)
        if messages and messages[0]["role"] == "system":
            return [{**messages[0], "content": messages[0]["content"] + text}, *messages[1:]]
        return [{"role": "system", "content": text.lstrip()}, *messages]

    def _answered(self, message: Message, replies: Sequence[Message], guard: Guard) -> tuple[str, str, str]:
        """The made-up conversation as the template writes it, and its head: see `_head`."""
        tools = guard.hide(self._probe_tools())  # first, so that their marks are the same ones each time
        turn, shown = self._probe(message, replies, guard)
        real = self._render([*self._base, turn, *shown], tools)
        return real, *self._head(turn, shown, tools, real, guard)

    def _probe(self, message: Message, replies: Sequence[Message], guard: Guard) -> tuple[Message, list[Message]]:
        """What stands for the sampled turn (its calls, as far as a template looks back at them), and the replies."""
        messages = stand_in(message, replies, self._tool_name, self._ids_shown)
        turn, *shown = [guard.hide(message) for message in for_template(messages, self.family)]
        if not message.get("tool_calls"):  # the call is made up: its tool's name is none of the reply's
            shown = [{key: value for key, value in reply.items() if key != "name"} for reply in shown]
        return turn, shown

    def _head(
        self, turn: Message, replies: Sequence[Message], tools: Sequence[Json], real: str, guard: Guard
    ) -> tuple[str, str]:
        """What comes before the bridge in `real`, and the end token that is its last; "" and "" if there is none."""
        key = json.dumps([turn, [{**reply, "content": ""} for reply in replies]])
        head, end = self._heads.get(key, ("", ""))
        if not head or not real.startswith(head):
            head, end = self._find_head(turn, replies, tools, real, guard.mark())
            if len(self._heads) >= HEADS:
                self._heads.clear()
            self._heads[key] = (head, end)
        return head, end

    def _find_head(
        self, turn: Message, replies: Sequence[Message], tools: Sequence[Json], real: str, anchor: str
    ) -> tuple[str, str]:
        """The turn with its end as the template writes it when it is the last one; else up to the last end token in
        front of the first reply's content, where the template shows that."""
        replies = [{**replies[0], "content": anchor}, *replies[1:]]
        before, found, _ = self._render([*self._base, turn, *replies], tools).partition(anchor)
        if not found:
            return "", ""
        said = self._render([*self._base, turn], tools, header=False)
        cut, end = self._last_end(said)
        if cut > self._begun and before.startswith(said[:cut]) and real.startswith(said[:cut]):
            return said[:cut], end
        cut, end = self._last_end(before)
        return (before[:cut], end) if cut and real.startswith(before[:cut]) else ("", "")

    def _last_end(self, text: str) -> tuple[int, str]:
        """Where the last end token of a text ends, and that token."""
        return max(((at + len(end), end) for end in self._ends if (at := text.rfind(end)) >= 0), default=(0, ""))

    def _set(self, stage: Stage | None) -> tuple[Stage, Sequence[Message], str]:
        """The stage, its messages and its assistant header. Raises JobFailure when the template renders on none."""
        refusal: JobFailure | None = None
        for option in STAGES if stage is None else (stage,):
            self.stage = option
            base: list[Message] = [{"role": "system", "content": "s"}] if option.system else []
            base.append({"role": "user", "content": "u"})
            for no_tools in (None, ()):  # a template for tool use only walks the list unasked
                self._no_tools = no_tools
                try:
                    return option, base, self._render(base, self._probe_tools())
                except JobFailure as e:
                    refusal = refusal or e
        raise refusal or JobFailure(f"{self.tokenizer.name}: the chat template renders nothing")

    def _after_call(self) -> str:
        """A rendered prompt behind a call and its result; "" when the template refuses one."""
        result: Message = {"role": "tool", "tool_call_id": _PROBE_ID, "content": "r"}
        messages = for_template(stand_in(probe_call(self._tool_name, {}, _PROBE_ID), [result], ""), self.family)
        with contextlib.suppress(JobFailure):
            return self._render([*self._base, *messages], self._probe_tools())
        return ""

    def _answers_alike(self) -> bool:
        """Whether the template writes a tool's answers to turns without calls as it does behind calls."""
        try:
            return all(self._answer(True, again) == self._answer(False, again) for again in (False, True))
        except JobFailure:
            return False

    def _answer(self, called: bool, again: bool) -> str:
        """How the template goes on behind a turn, with a call or without one, that a tool answers; `again`: behind the
        second such. Raises JobFailure when it refuses the answer or leaves it out."""
        messages: list[Message] = []
        for n in range(1 + again):
            id = self.call_id(f"call{n:05}", self._tool_name, n)
            messages.append(probe_call(self._tool_name, id=id) if called else {"role": "assistant", "content": "a"})
            messages.append({"role": "tool", "tool_call_id": id, "content": _PROBE_ID if n == again else "r"})
        messages += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}]
        shown = for_template(messages, self.family)
        for message in shown:
            message.pop("name", None)
        before, found, after = self._render([*self._base, *shown], self._probe_tools()).partition(_PROBE_ID)
        if not found:
            raise self._refusal(["tool"], "the template leaves the result out")
        return before[self._last_end(before)[0] :] + found + after

    def _probe_tools(self) -> Sequence[Json]:
        return self.tools if self.stage.tools else ()

    def _render(self, messages: Sequence[Message], tools: Sequence[Json] = (), header: bool = True) -> str:
        return self.tokenizer.render(
            messages, tools or self._no_tools, add_generation_prompt=header, **self.family.kwargs
        )

    def _refusal(self, roles: Sequence[str], why: str) -> JobFailure:
        edge = f"assistant -> {', '.join(roles) or 'nothing'} -> assistant"
        return JobFailure(f"{self.tokenizer.name}: the edge {edge} is not supported: {why}")

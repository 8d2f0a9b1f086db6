"""Compares bridges with what a chat template itself writes, over the conversations of the
self-check.

The sampled history plus the bridge is compared, id for id, with the full render of the same
conversation. Where the template rewrites the history once more follows, the bridge must still be
the end of the full render. It does not know which edges a job needs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import contextlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from rollq.errors import JobFailure
from rollq.events import Message
from rollq_worker.tokens.injection_guard import any_of
from rollq_worker.tokens.renderer import ChatRenderer, Continuation
from rollq_worker.tokens.selfcheck.conversations import (
    LONG_CONVERSATIONS,
    REASONING_WORD,
    Conversations,
    Edge,
    Exchange,
)


class Match(StrEnum):
    """Classes of an edge's bridge beside the template's full render, from good to bad."""

    EXACT = "exact"
    """Ids are equal."""
    SAME_TEXT = "same text"
    """Text is equal, in other ids where the assistant header and the turn meet."""
    REWRITE = "rewrite"
    """The template writes earlier turns differently once more follows; the bridge keeps them as
    they were sampled.
    """
    UNSUPPORTED = "unsupported"
    """No bridge exists, or the template writes another text there."""


MOVED = (
    "the template moves the tools or the system prompt behind earlier turns; the bridge "
    "leaves them where they are"
)
UNLIKE_FIRST = (
    "the template writes this turn and its answer otherwise than a plain first turn's; the "
    "bridge is the latter's"
)
LEFT_OUT = "the template leaves out the reasoning of a turn, the words beside its call, or a call"
ONE_CALL = (
    "the template writes one call a turn: when rendered again, each call is a turn of its own"
)
OTHER_IDS = (
    "the header's last characters and the turn's first ones are other ids when they are encoded "
    "together"
)
_RANK = tuple(Match)
_LONGEST_END = 100
"""Number of characters; no token that ends turns is longer."""
_LONGEST_HEADER = 1000
"""Number of characters; a header that is longer is encoded with all that precedes it."""
_LAST_TURNS = 3
"""Number of turns, at the end of the last long conversation, at which edges that rewrite are
compared.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One edge's class and, unless exact, why."""

    match: Match
    why: str = ""
    renders: bool = True
    """True if the template renders this conversation in full, so that rendering it again can
    replace a bridge.
    """


class BridgeComparison:
    """Compares the bridges of one renderer."""

    def __init__(self, renderer: ChatRenderer, rerender: bool = False) -> None:
        """`rerender`: the conversation is rendered again, with all reasoning under its key and none
        in tags.
        """
        self.renderer = renderer
        self._rerender = rerender
        self._tokenizer = renderer.tokenizer
        self._control = any_of(filter(None, self._tokenizer.added_tokens))
        self._conversations = Conversations(
            renderer.tools, renderer.complaint_role(None), renderer.reader.think
        )
        self._texts: dict[tuple[int, ...], tuple[str, Sequence[Message]]] = {}
        """Rendered texts by the identities of their messages. The messages are kept, so that no
        other one gets theirs.
        """
        self._ids: dict[str, array[int]] = {}
        self._bridges: dict[str, tuple[array[int], str]] = {}
        self._exact: set[tuple[str, str, str]] = set()
        """Headers, each with the texts that the template writes after it and the bridge that ends
        them, that were compared as ids.
        """

    def find_in_short(self) -> dict[Edge, Finding]:
        """The classes of all edges that an episode may take, each in a short conversation."""
        return {edge: self.find(edge) for edge in self._conversations.edges}

    def find(self, edge: Edge) -> Finding:
        """The class of an edge in a short conversation."""
        if edge is Edge.OPEN:
            return self._compare_prompt()
        first: Finding | None = None
        for form in self._conversations.forms(
            edge, tags=not (self._rerender or self._takes_reasoning)
        ):
            findings = map(self._compare, self._conversations.short(edge, form))
            finding = max(findings, key=lambda finding: _RANK.index(finding.match))
            if finding.match is not Match.UNSUPPORTED and finding.why != LEFT_OUT:
                return finding
            first = first or finding
        assert first is not None  # every edge has a form
        return first

    def find_in_long(self, short: Mapping[Edge, Finding]) -> Mapping[Edge, Finding]:
        """The findings of short conversations, made worse by those of long ones."""
        findings = dict(short)
        if short[Edge.OPEN].match is not Match.UNSUPPORTED:
            conversations = [
                [edge for edge in edges if edge in short] for edges in LONG_CONVERSATIONS
            ]
            for edges in conversations:
                self._go_through_exact(edges, findings)
            self._go_through_supported(conversations[-1], findings)
        return findings

    @cached_property
    def _takes_reasoning(self) -> bool:
        """True if the template takes reasoning under its key. Another template may know tags in the
        content.
        """
        conversations = self._conversations
        for turn in (conversations.call(), conversations.reply()):
            with contextlib.suppress(JobFailure):
                messages = [*conversations.opening, conversations.reason(turn, "key")]
                if REASONING_WORD in self.renderer.prompt(messages, conversations.tools):
                    return True
        return False

    def _go_through_exact(self, edges: Sequence[Edge], findings: dict[Edge, Finding]) -> None:
        """Compares a long conversation of edges that are exact or the same text, after a first call
        that need not be.

        An exchange that is neither is left out of the history, so that it does not spoil the
        following ones.
        """
        history = list(self._conversations.opening)
        for edge in edges:
            exchange = self._conversations.after(
                history, edge, "key" if self._takes_reasoning else "tags"
            )
            counts_for = self._conversations.edges_of(edge, exchange)
            match = max((findings[covered].match for covered in counts_for), key=_RANK.index)
            if match in (Match.EXACT, Match.SAME_TEXT):
                worse = self._worse_than(match, exchange)
                if worse is not None:
                    findings |= self._blame(match, edge, exchange, worse)
                    if worse.match is not Match.SAME_TEXT:
                        continue
            elif counts_for[0] not in (Edge.CALL, Edge.REASONED_CALL) or any(
                findings[covered].match is Match.UNSUPPORTED for covered in counts_for
            ):
                continue
            history = exchange.messages

    def _go_through_supported(self, edges: Sequence[Edge], findings: dict[Edge, Finding]) -> None:
        """Compares a long conversation of all supported edges. Those that rewrite are compared near
        its end.
        """
        history = list(self._conversations.opening)
        for n, edge in enumerate(edges):
            exchange = self._conversations.after(history, edge, "key")
            counts_for = self._conversations.edges_of(edge, exchange)
            counted = [findings[covered] for covered in counts_for]
            if any(finding.match is Match.UNSUPPORTED for finding in counted):
                continue
            rewrites = any(finding.match is Match.REWRITE for finding in counted)
            is_explained = any(finding.why in (MOVED, UNLIKE_FIRST) for finding in counted)
            if rewrites and not is_explained and n >= len(edges) - _LAST_TURNS:
                worse = self._worse_than(Match.REWRITE, exchange)
                if worse is not None:
                    findings[counts_for[0]] = worse
                    continue
            history = exchange.messages

    def _blame(
        self, match: Match, edge: Edge, exchange: Exchange, worse: Finding
    ) -> Mapping[Edge, Finding]:
        """The edge to blame for a worse result: any call or reply after this history, or only this
        special one.
        """
        counts_for = self._conversations.edges_of(edge, exchange)
        plain = Edge.REPLY if exchange.replies[0]["role"] == "user" else Edge.CALL
        other = self._conversations.after(exchange.history, plain, "")
        edges = self._conversations.edges_of(plain, other)
        if set(edges) < set(counts_for):
            finding = self._worse_than(match, other)
            if finding is not None and finding.match is worse.match:
                return {edges[0]: finding}
        return {counts_for[0]: worse}

    def _worse_than(self, match: Match, exchange: Exchange) -> Finding | None:
        """The finding of an exchange if it is worse than this class; else None."""
        with contextlib.suppress(JobFailure):
            if match is Match.REWRITE:
                good = self._ends_with(self._render(exchange.messages), *self._bridge(exchange))
            else:
                good = self._continuation(exchange) in self._exact
            if good:
                return None
        finding = self._compare(exchange)
        return finding if _RANK.index(finding.match) > _RANK.index(match) else None

    def _compare(self, exchange: Exchange) -> Finding:
        if self.renderer.family.one_call and len(exchange.turn.get("tool_calls", ())) > 1:
            return self._compare_first_call(exchange)
        turns = [*exchange.history, exchange.turn]
        tools = self._conversations.tools
        try:
            prompt = self._render(exchange.history)
            full = self._render(exchange.messages)
            continued = self.renderer.extend(turns, exchange.replies, tools, prompt, full)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e), renders=False)
        try:
            bridge, bridge_text = self._bridge(exchange)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e))
        unseen = [word for word in exchange.reply_words if word not in bridge_text]
        if unseen:
            why = f"the template leaves out {unseen[0]!r} of what is replied"
            return Finding(Match.UNSUPPORTED, why)
        turn = continued.before_replies.removeprefix(prompt)
        rewritten = continued.rewritten
        if not all(word in turn for word in exchange.turn_words):
            rewritten = LEFT_OUT
        if not rewritten:
            finding = self._compare_ids(exchange, prompt, turn, bridge, continued.full)
            if finding is not None:
                return finding
        elif self._ends_with(continued.full, bridge, bridge_text):
            return Finding(Match.REWRITE, rewritten)
        return self._explain_difference(exchange, continued)

    def _explain_difference(self, exchange: Exchange, continued: Continuation) -> Finding:
        """The finding of a bridge that the template does not write after this history."""
        if self._moves_the_prompt(exchange, continued):
            return Finding(Match.REWRITE, MOVED)
        if continued.rewritten and self._is_right_for_plainer(exchange):
            return Finding(Match.REWRITE, UNLIKE_FIRST)
        why = "the bridge differs from what the template writes after this history"
        return Finding(Match.UNSUPPORTED, why)

    def _compare_first_call(self, exchange: Exchange) -> Finding:
        """Compares only the first call, for a template that writes one call a turn."""
        calls = exchange.turn["tool_calls"]
        first = replace(
            exchange,
            turn={**exchange.turn, "tool_calls": calls[:1]},
            replies=exchange.replies[:1],
            reply_words=exchange.reply_words[:1],
            turn_words=(),
        )
        finding = self._compare(first)
        if finding.match is Match.UNSUPPORTED:
            return finding
        return Finding(Match.REWRITE, ONE_CALL)

    def _compare_ids(
        self, exchange: Exchange, prompt: str, turn: str, bridge: array[int], full: str
    ) -> Finding | None:
        """Compares header, turn and bridge with the end of `full`, id for id. None if they differ
        as texts.
        """
        start = self._header_start(prompt)
        header = prompt[start:]
        ids = self._encode(full[start:])
        if self._encode(header) + self._encode(turn) + bridge == ids:
            self._exact.add(self._continuation(exchange))
            return Finding(Match.EXACT)
        if self._encode(header + turn) + bridge == ids:
            return Finding(Match.SAME_TEXT, OTHER_IDS)
        return None

    def _render(self, messages: Sequence[Message]) -> str:
        """The text that the template writes for the conversation so far, with the next assistant
        header. Raises JobFailure.
        """
        key = tuple(map(id, messages))
        if key not in self._texts:
            self._texts[key] = self.renderer.prompt(messages, self._conversations.tools), messages
        return self._texts[key][0]

    def _encode(self, text: str) -> array[int]:
        """The ids of a text. They are kept, because many texts come again."""
        if text not in self._ids:
            self._ids[text] = self._tokenizer.encode(text)
        return self._ids[text]

    def _header_start(self, prompt: str) -> int:
        """Start of the last control token of a prompt. Texts on both sides of one are encoded
        apart.
        """
        marks = [
            match.start()
            for match in self._control.finditer(prompt, max(0, len(prompt) - _LONGEST_HEADER))
        ]
        return marks[-1] if marks else 0

    def _continuation(self, exchange: Exchange) -> tuple[str, str, str]:
        """The header, the text that the template writes after it, and the bridge, without ids of
        calls. The second is "" where the text does not end with the bridge.

        Raises JobFailure.
        """
        _, text = self._bridge(exchange)
        before, full = self._render(exchange.history), self._render(exchange.messages)
        header = before[self._header_start(before) :]
        if not full.startswith(before) or not full.endswith(text):
            return header, "", text
        after = full[len(before) :]
        for reply in self._with_shown_ids(exchange)[1:]:
            if id := reply.get("tool_call_id"):
                after = after.replace(id, "\0")
                text = text.replace(id, "\0")
        return header, after, text

    def _with_shown_ids(self, exchange: Exchange) -> list[Message]:
        """The turn and its replies, with the ids of calls that the template is shown for them."""
        numbered = exchange.history if self.renderer.family.call_id_format else ()
        return self.renderer.shown([*numbered, exchange.turn, *exchange.replies])[len(numbered) :]

    def _bridge(self, exchange: Exchange) -> tuple[array[int], str]:
        turn, *replies = self._with_shown_ids(exchange)
        if not exchange.turn.get("tool_calls"):
            turn = exchange.turn
        ids = [reply.get("tool_call_id") or "\0" for reply in replies]
        key = json.dumps([exchange.truncated, turn, replies])
        for id in ids:
            key = key.replace(id, "")
        if key in self._bridges:
            return self._bridges[key]
        stop = self.renderer.close(turn, replies) if exchange.truncated else None
        bridge = self.renderer.bridge(turn, replies, stop)
        text = self._tokenizer.decode(bridge)
        if not any(id in text for id in ids):
            self._bridges[key] = bridge, text
        return bridge, text

    def _ends_with(self, full: str, bridge: array[int], text: str) -> bool:
        """True if the template's own text ends with a turn's end and the bridge, whose text is
        `text`.
        """
        end = self._encode(full[-len(text) - _LONGEST_END :])
        before = len(end) - len(bridge)
        return before > 0 and end[before:] == bridge and self.renderer.is_end(end[before - 1])

    def _is_right_for_plainer(self, exchange: Exchange) -> bool:
        plainer = self._conversations.plainer(exchange)
        return plainer != exchange and self._compare(plainer).match is not Match.UNSUPPORTED

    def _moves_the_prompt(self, exchange: Exchange, continued: Continuation) -> bool:
        """True if the bridge is right without tools and system prompt, which the template moves to
        the last message.
        """
        prompt = self._render(self._conversations.opening)
        full = continued.full
        words = [word for word in self._conversations.words_shown_once if prompt.count(word) == 1]
        if any(full.count(word) > prompt.count(word) for word in words):
            return False  # they are not moved but repeated, and the bridge does not repeat them
        if all(full.rfind(word) < full.find(self._conversations.user_word) for word in words):
            return False  # they still stand in front of the user's first message
        history = [message for message in exchange.history if message["role"] != "system"]
        with contextlib.suppress(JobFailure):
            full = self.renderer.prompt([*history, exchange.turn, *exchange.replies], ())
            return self._ends_with(full, *self._bridge(exchange))
        return False

    def _compare_prompt(self) -> Finding:
        """The first prompt is what the template writes, and the template leaves nothing
        out of it.
        """
        opening, tools = self._conversations.opening, self._conversations.tools
        try:
            prompt = self.renderer.prompt(opening, tools)
            ids = self.renderer.open(opening, tools)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e), renders=False)
        if self._tokenizer.encode(prompt) != ids:
            why = "control tokens cannot be told from text in this vocabulary"
            return Finding(Match.UNSUPPORTED, why, renders=False)
        for what, words in self._conversations.prompt_words.items():
            if any(word not in prompt for word in words):
                return Finding(Match.UNSUPPORTED, f"the template leaves out {what}", renders=False)
        return Finding(Match.EXACT)

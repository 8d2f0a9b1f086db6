"""One chat template tried on golden conversations: are bridges what it would have written itself?

The sampled history plus the bridge is compared, id for id, with the full render of the same conversation. Where the
template writes the history differently once more follows, the bridge must still be what it puts at the end. It does not
know which edges anybody needs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import contextlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from rollq.errors import JobFailure
from rollq.trajectory import Message
from rollq_worker.tokens.renderer import ChatRenderer, Extension
from rollq_worker.tokens.selfcheck.conversations import EPISODES, THOUGHT, Edge, Golden, Play
from rollq_worker.toolcalls import PARSERS


class Match(StrEnum):
    """How an edge's bridge compares with the template's full render."""

    EXACT = "exact"
    """The same ids."""
    REWRITE = "rewrite"
    """The template writes earlier turns differently once more follows; the bridge keeps them as they were sampled."""
    UNSUPPORTED = "unsupported"
    """There is no bridge, or it is not what the template puts there."""


MOVED = "the template moves the tools or the system prompt behind earlier turns; the bridge leaves them where they are"
ONCE = "the template writes this turn and its answer otherwise than a plain first turn's; the bridge is the latter's"
SILENT = "the template leaves out the reasoning of a turn, or the words beside its call"
LONGEST_END = 100
"""Characters: no token that ends turns is longer."""
REWRITES = 3
"""Turns at the end of the last long conversation at which edges that rewrite are looked at."""
_FIRST = (Edge.CALL, Edge.THOUGHT_CALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One edge's class and, unless exact, why."""

    match: Match
    why: str = ""
    renders: bool = True
    """The template renders this conversation in full, so it can be written anew where no bridge is to be had."""


class Probe:
    """Golden conversations rendered in full and by bridges."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self.renderer = renderer
        self.tokenizer = renderer.tokenizer
        think = PARSERS[renderer.family.parser].think
        self.golden = Golden(renderer.tools, renderer.complaint_role(None), think)
        self._texts: dict[tuple[int, ...], tuple[str, Sequence[Message]]] = {}
        """What was rendered, by the messages' identities, and the messages, so that these stay theirs."""
        self._ids: dict[str, array[int]] = {}
        self._bridges: dict[str, tuple[array[int], str]] = {}
        self._good: set[tuple[str, str]] = set()
        """What the template writes behind a prompt, and the bridge that is the end of it, where all was exact."""

    @cached_property
    def shows_thoughts(self) -> bool:
        """The template takes reasoning under its key; one that does not may know tags in the content."""
        shown = (self.golden.think(turn, "key") for turn in (self.golden.call(), self.golden.say()))
        for turn in shown:
            with contextlib.suppress(JobFailure):
                if THOUGHT in self.renderer.prompt([*self.golden.opening, turn], self.golden.tools):
                    return True
        return False

    def find(self, edge: Edge) -> Finding:
        """The class of an edge in a short conversation."""
        if edge is Edge.OPEN:
            return self.open()
        first: Finding | None = None
        for play in self.golden.plays(edge, tags=not self.shows_thoughts):
            finding = self.compare(play)
            if finding.match is not Match.UNSUPPORTED and finding.why != SILENT:
                return finding
            first = first or finding
        assert first is not None  # every edge has a play
        return first

    def deep(self, found: Mapping[Edge, Finding]) -> Mapping[Edge, Finding]:
        """The same findings after long conversations, in which edges may do worse."""
        worse = dict(found)
        if found[Edge.OPEN].match is not Match.UNSUPPORTED:
            for episode in EPISODES:
                self.play_exact(episode, worse)
            self.play_all(EPISODES[-1], worse)
        return worse

    def play_exact(self, episode: Sequence[Edge], found: dict[Edge, Finding]) -> None:
        """A long conversation of edges that are exact, behind a first call which need not be.

        An edge that is not exact there is left out, so that it is not held against others.
        """
        history = list(self.golden.opening)
        for edge in episode:
            play = self.golden.later(edge, history, "key" if self.shows_thoughts else "tags")
            edges = self.golden.edges(edge, play)
            if all(found[one].match is Match.EXACT for one in edges):
                worse = self.worse(play, Match.EXACT)
                if worse is not None:
                    found |= self.blamed(edge, play, worse)
                    continue
            elif edges[0] not in _FIRST or any(found[one].match is Match.UNSUPPORTED for one in edges):
                continue
            history += [play.turn, *play.replies]

    def play_all(self, episode: Sequence[Edge], found: dict[Edge, Finding]) -> None:
        """A long conversation of all edges that are supported: those that rewrite are looked at near its end."""
        history = list(self.golden.opening)
        for n, edge in enumerate(episode):
            play = self.golden.later(edge, history, "key")
            edges = self.golden.edges(edge, play)
            findings = [found[one] for one in edges]
            if any(finding.match is Match.UNSUPPORTED for finding in findings):
                continue
            rewrites = any(finding.match is Match.REWRITE for finding in findings)
            if rewrites and n >= len(episode) - REWRITES and not any(one.why in (MOVED, ONCE) for one in findings):
                worse = self.worse(play, Match.REWRITE)
                if worse is not None:
                    found[edges[0]] = worse
                    continue
            history += [play.turn, *play.replies]

    def blamed(self, edge: Edge, play: Play, worse: Finding) -> Mapping[Edge, Finding]:
        """What is found worse: all calls or users behind this history, or only what is special of this one."""
        plain = Edge.USER if play.replies[0]["role"] == "user" else Edge.CALL
        other = self.golden.later(plain, play.history, "")
        edges = self.golden.edges(plain, other)
        if set(edges) < set(self.golden.edges(edge, play)):
            found = self.worse(other, Match.EXACT)
            if found is not None:
                return {edges[0]: found}
        return {self.golden.edges(edge, play)[0]: worse}

    def worse(self, play: Play, match: Match) -> Finding | None:
        """What is found of a play that is not of this class; None: it is."""
        with contextlib.suppress(JobFailure):
            if match is Match.EXACT:
                good = self.continuation(play) in self._good
            else:
                good = self.ends_with(self.written([*play.history, play.turn, *play.replies]), *self.bridge(play))
            if good:
                return None
        finding = self.compare(play)
        return finding if finding.match not in (match, Match.EXACT) else None

    def written(self, messages: Sequence[Message]) -> str:
        """What the template writes for the conversation so far, with the next assistant header. Raises JobFailure."""
        key = tuple(map(id, messages))
        if key not in self._texts:
            self._texts[key] = self.renderer.prompt(messages, self.golden.tools), messages
        return self._texts[key][0]

    def ids(self, text: str) -> array[int]:
        """The text encoded, which much of it was before."""
        if text not in self._ids:
            self._ids[text] = self.tokenizer.encode(text)
        return self._ids[text]

    def continuation(self, play: Play) -> tuple[str, str]:
        """What the template writes behind the history, and the bridge, without ids of calls; "" unless the one is the
        end of the other. Raises JobFailure."""
        _, text = self.bridge(play)
        before, full = self.written(play.history), self.written([*play.history, play.turn, *play.replies])
        if not full.startswith(before) or not full.endswith(text):
            return "", text
        after = full[len(before) :]
        for reply in self.told(play)[1:]:
            if id := reply.get("tool_call_id"):
                after, text = after.replace(id, "\0"), text.replace(id, "\0")
        return after, text

    def told(self, play: Play) -> list[Message]:
        """The turn and its replies, with the ids of calls under which the template is shown them."""
        numbered = play.history if self.renderer.family.call_id else ()
        return self.renderer.shown([*numbered, play.turn, *play.replies])[len(numbered) :]

    def compare(self, play: Play) -> Finding:
        turns, tools = [*play.history, play.turn], self.golden.tools
        try:
            known = self.written(play.history), self.written([*turns, *play.replies])
            extension = self.renderer.extend(turns, play.replies, tools, *known)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e), renders=False)
        try:
            bridge, shown = self.bridge(play)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e))
        unseen = [word for word in play.words if word not in shown]
        if unseen:
            return Finding(Match.UNSUPPORTED, f"the template leaves out {unseen[0]!r} of what is replied")
        rewritten = SILENT if play.beside not in extension.said else extension.rewritten
        if not rewritten:
            near = max(0, len(extension.said) - LONGEST_END)
            if self.ids(extension.said[near:]) + bridge == self.ids(extension.full[near:]):
                self._good.add(self.continuation(play))
                return Finding(Match.EXACT)
        elif self.ends_with(extension.full, bridge, shown):
            return Finding(Match.REWRITE, rewritten)
        if self.moved(play, extension):
            return Finding(Match.REWRITE, MOVED)
        if extension.rewritten and self.is_plain_one(play):
            return Finding(Match.REWRITE, ONCE)
        return Finding(Match.UNSUPPORTED, "the bridge differs from what the template writes after this history")

    def bridge(self, play: Play) -> tuple[array[int], str]:
        """The bridge, and its text. Raises JobFailure."""
        turn, *replies = self.told(play)
        if not play.turn.get("tool_calls"):
            turn = play.turn
        key, ids = json.dumps([play.cut, turn, replies]), [reply.get("tool_call_id") or "\0" for reply in replies]
        for id in ids:
            key = key.replace(id, "")
        found = self._bridges.get(key)
        if found is None:
            stop = self.renderer.close(turn, replies) if play.cut else None
            bridge = self.renderer.bridge(turn, replies, stop)
            found = bridge, self.tokenizer.decode(bridge)
            if not any(id in found[1] for id in ids):
                self._bridges[key] = found
        return found

    def ends_with(self, full: str, bridge: array[int], text: str) -> bool:
        """The template's own writing ends with a turn's end and the bridge, whose text is `text`."""
        end = self.ids(full[-len(text) - LONGEST_END :])
        before = len(end) - len(bridge)
        return before > 0 and end[before:] == bridge and self.renderer.is_end(end[before - 1])

    def is_plain_one(self, play: Play) -> bool:
        """The bridge is right behind the plainer turn that this one is told apart from."""
        plainer = self.golden.plainer(play)
        return plainer != play and self.compare(plainer).match is not Match.UNSUPPORTED

    def moved(self, play: Play, extension: Extension) -> bool:
        """The bridge is right without tools and system prompt, which the template moves to the last message."""
        prompt = self.written(self.golden.opening)
        full, told = extension.full, self.golden.told_once
        if any(full.count(word) > prompt.count(word) for word in told):
            return False  # they are not moved but repeated, and the bridge does not repeat them
        if all(full.rfind(word) < full.find(self.golden.asked) for word in told):
            return False  # they are where they were, in front of the user's first message
        history = [message for message in play.history if message["role"] != "system"]
        with contextlib.suppress(JobFailure):
            full = self.renderer.prompt([*history, play.turn, *play.replies], ())
            return self.ends_with(full, *self.bridge(play))
        return False

    def open(self) -> Finding:
        """The first prompt is what the template writes, and the template leaves nothing out of it."""
        opening, tools = self.golden.opening, self.golden.tools
        try:
            prompt = self.renderer.prompt(opening, tools)
            ids = self.renderer.open(opening, tools)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e), renders=False)
        if self.tokenizer.encode(prompt) != ids:
            return Finding(
                Match.UNSUPPORTED, "control tokens cannot be told from text in this vocabulary", renders=False
            )
        for what, words in self.golden.words.items():
            if any(word not in prompt for word in words):
                return Finding(Match.UNSUPPORTED, f"the template leaves out {what}", renders=False)
        return Finding(Match.EXACT)

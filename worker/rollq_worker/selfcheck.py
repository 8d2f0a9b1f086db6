"""Checks on golden conversations that bridges are what the chat template itself would have written.

For every edge of an episode the sampled history plus the bridge is compared, id for id, with the full render of the
same conversation. Where the template writes the history differently once more follows, the bridge must still be what it
puts at the end. Runs once per tokenizer, template and tools. It does not know environments or jobs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import contextlib
import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.family import KEEPING, Family
from rollq_worker.golden import THOUGHT, Edge, Golden, Play
from rollq_worker.guard import Controls, Guard
from rollq_worker.renderer import STAGES, ChatRenderer, Extension, Stage
from rollq_worker.tokenizer import Tokenizer
from rollq_worker.toolcalls import think_tags


class Match(StrEnum):
    """How an edge's bridge compares with the template's full render."""

    EXACT = "exact"
    """The same ids."""
    REWRITE = "rewrite"
    """The template writes earlier turns differently once more follows; the bridge keeps them as they were sampled."""
    UNSUPPORTED = "unsupported"
    """There is no bridge, or it is not what the template puts there."""


NEEDED = (Edge.OPEN, Edge.CALL, Edge.AGAIN, Edge.USER, Edge.SERVED, Edge.EMPTY, Edge.LINES, Edge.MALFORMED)
"""The edges any tool-calling episode may take."""
MOVED = "the template moves the tools or the system prompt behind earlier turns; the bridge leaves them where they are"
ONCE = "the template writes this turn and its answer otherwise than a plain first turn's; the bridge is the latter's"
SILENT = "the template leaves out the reasoning of a turn, or the words beside its call"


@dataclass(frozen=True, slots=True)
class Finding:
    """One edge's class and, unless exact, why."""

    match: Match
    why: str = ""
    renders: bool = True
    """The template renders this conversation in full, so it can be written anew where no bridge is to be had."""


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """The edges of one tokenizer, template and tools."""

    tokenizer: str
    record: Family
    stage: Stage
    edges: Mapping[Edge, Finding]

    def require(self, *edges: Edge, anew: bool = False) -> None:
        """Raise JobFailure naming the first of these edges that is unsupported.

        `anew`: the episode renders the conversation anew where the template rewrites it, so that will do.
        """
        for edge in edges:
            finding = self.edges[edge]
            if finding.match is Match.UNSUPPORTED and not (anew and finding.renders):
                raise JobFailure(
                    f"{self.tokenizer}: the chat template does not support the edge {edge.value!r}: "
                    f"{finding.why}; use another template or model"
                )

    @property
    def family(self) -> str:
        return self.record.name

    @property
    def parser(self) -> str:
        """The reader of its calls."""
        return self.record.parser

    @property
    def kwargs(self) -> Mapping[str, Json]:
        """What the template is given beside messages and tools."""
        return self.record.kwargs

    @property
    def missing(self) -> Sequence[Edge]:
        """The edges which any episode may take that are unsupported."""
        return [edge for edge in NEEDED if self.edges[edge].match is Match.UNSUPPORTED]

    @cached_property
    def table(self) -> str:
        """One line an edge, for people."""
        width = max(len(edge) for edge in self.edges)
        lines = (f"{edge.value:{width}}  {found.match.value:11}  {found.why}" for edge, found in self.edges.items())
        return "\n".join(line.rstrip() for line in lines)


KEPT = 256
"""Findings that are remembered: environments may make up tools for every task."""
_checked: dict[tuple[str, str, str, bool], SelfCheck] = {}


def check(tokenizer: Tokenizer, tools: Sequence[Json], anew: bool = False) -> SelfCheck:
    """Class every edge for these tools. Raises JobFailure for an unknown family or a prompt that cannot be rendered.

    `anew`: see `SelfCheck.require`. Otherwise the template is asked to keep old reasoning, if it can be and that makes
    more edges exact: the history keeps it anyway.
    """
    digest = hashlib.sha256(json.dumps(list(tools), sort_keys=True).encode()).hexdigest()
    key = (tokenizer.hash, tokenizer.template_hash, digest, anew)
    found = _checked.get(key)
    if found is None:
        # Where tools speak of control tokens, the rendered text has other ids than are wanted: digits stand there.
        silent: list[Json] = Guard(Controls(tokenizer)).hide(list(tools))
        found = _best(tokenizer, silent, anew)
        if len(_checked) >= KEPT:
            _checked.clear()
        _checked[key] = found
    return replace(found, tokenizer=tokenizer.name)


def checked_renderer(tokenizer: Tokenizer, tools: Sequence[Json], *edges: Edge, anew: bool = False) -> ChatRenderer:
    """A renderer for these tools.

    Raises JobFailure when an edge that any episode may take, or one of `edges`, is unsupported; `anew`: see
    `SelfCheck.require`.
    """
    found = check(tokenizer, tools, anew)
    found.require(*NEEDED, *edges, anew=anew)
    return ChatRenderer(tokenizer, tools, found.record, found.stage)


def _best(tokenizer: Tokenizer, tools: Sequence[Json], anew: bool) -> SelfCheck:
    """The findings as the template is, or as it is when asked to keep old reasoning where that is better."""
    plain = ChatRenderer(tokenizer, tools)
    found = _on_some_stage(plain)
    keeping = {} if anew else {name: value for name, value in KEEPING.items() if tokenizer.mentions(name)}
    if not keeping:
        return found
    kept = _on_some_stage(ChatRenderer(tokenizer, tools, replace(plain.family, kwargs=keeping)))
    return max(found, kept, key=lambda one: (-_count(one, Match.UNSUPPORTED), _count(one, Match.EXACT)))


def _on_some_stage(first: ChatRenderer) -> SelfCheck:
    """The findings on the first stage with nothing unsupported, else on the one with the least."""
    found: list[SelfCheck] = []
    for stage in STAGES:
        try:
            renderer = ChatRenderer(first.tokenizer, first.tools, first.family, stage)
        except JobFailure:
            continue
        probe = _Probe(renderer)
        edges = {edge: probe.find(edge) for edge in Edge}
        found.append(SelfCheck(tokenizer=first.tokenizer.name, record=first.family, stage=stage, edges=edges))
        if _count(found[-1], Match.UNSUPPORTED) == 0:
            break
    return min(found, key=lambda one: _count(one, Match.UNSUPPORTED))


def _count(found: SelfCheck, match: Match) -> int:
    return sum(finding.match is match for finding in found.edges.values())


class _Probe:
    """Golden conversations rendered in full and by bridges."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self.renderer = renderer
        self.tokenizer = renderer.tokenizer
        think = think_tags(renderer.family.parser)
        self.golden = Golden(renderer.tools, renderer.complaint_role(None), think)

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
        if edge is Edge.OPEN:
            return self.open()
        first: Finding | None = None
        for play in self.golden.plays(edge, tags=not self.shows_thoughts):
            # Twice: a template may show the time, and it has just become another one.
            finding = self.compare(play)
            if finding.match is Match.UNSUPPORTED:
                finding = self.compare(play)
            if finding.match is not Match.UNSUPPORTED and finding.why != SILENT:
                return finding
            first = first or finding
        assert first is not None  # every edge has a play
        return first

    def compare(self, play: Play) -> Finding:
        try:
            extension = self.renderer.extend([*play.history, play.turn], play.replies, self.golden.tools)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e), renders=False)
        try:
            bridge = self.bridge(play)
        except JobFailure as e:
            return Finding(Match.UNSUPPORTED, str(e))
        unseen = [word for word in play.words if word not in self.tokenizer.decode(bridge)]
        if unseen:
            return Finding(Match.UNSUPPORTED, f"the template leaves out {unseen[0]!r} of what is replied")
        rewritten = SILENT if play.beside not in extension.said else extension.rewritten
        if not rewritten:
            if self.tokenizer.encode(extension.said) + bridge == self.tokenizer.encode(extension.full):
                return Finding(Match.EXACT)
        elif self.ends_with(extension, bridge):
            return Finding(Match.REWRITE, rewritten)
        if self.moved(play, extension, bridge):
            return Finding(Match.REWRITE, MOVED)
        if extension.rewritten and self.is_plain_one(play):
            return Finding(Match.REWRITE, ONCE)
        return Finding(Match.UNSUPPORTED, "the bridge differs from what the template writes after this history")

    def bridge(self, play: Play) -> array[int]:
        """The bridge, told of the calls under the ids that the model gives them."""
        turn, *replies = self.renderer.shown([*play.history, play.turn, *play.replies])[len(play.history) :]
        if not play.turn.get("tool_calls"):
            turn = play.turn
        stop = self.renderer.close(turn, replies) if play.cut else None
        return self.renderer.bridge(turn, replies, stop)

    def ends_with(self, extension: Extension, bridge: array[int]) -> bool:
        """The template's own writing ends with a turn's end and the bridge."""
        full = self.tokenizer.encode(extension.full)
        before = len(full) - len(bridge)
        return before > 0 and full[before:] == bridge and self.renderer.is_end(full[before - 1])

    def is_plain_one(self, play: Play) -> bool:
        """The bridge is right behind the plainer turn that this one is told apart from."""
        plainer = self.golden.plainer(play)
        return plainer != play and self.compare(plainer).match is not Match.UNSUPPORTED

    def moved(self, play: Play, extension: Extension, bridge: array[int]) -> bool:
        """The bridge is right without tools and system prompt, which the template moves to the last message."""
        prompt = self.renderer.prompt(self.golden.opening, self.golden.tools)
        full, told = extension.full, self.golden.told_once
        if any(full.count(word) > prompt.count(word) for word in told):
            return False  # they are not moved but repeated, and the bridge does not repeat them
        if all(full.rfind(word) < full.find(self.golden.asked) for word in told):
            return False  # they are where they were, in front of the user's first message
        history = [message for message in play.history if message["role"] != "system"]
        with contextlib.suppress(JobFailure):
            return self.ends_with(self.renderer.extend([*history, play.turn], play.replies, ()), bridge)
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

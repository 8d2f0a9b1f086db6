"""Which edges of an episode a chat template has, and whether it writes there what our bridges are.

Every edge is tried on golden conversations (`comparison`), once for each tokenizer, template and set of tools. It does
not know environments or jobs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.tokens.injection_guard import Controls, Guard
from rollq_worker.tokens.model_family import KEEPING, Family
from rollq_worker.tokens.renderer import STAGES, ChatRenderer, Stage
from rollq_worker.tokens.selfcheck.comparison import Finding, Probe
from rollq_worker.tokens.selfcheck.comparison import Match as Match
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.tokenizer import Tokenizer

NEEDED = (Edge.OPEN, Edge.CALL, Edge.AGAIN, Edge.USER, Edge.SERVED, Edge.EMPTY, Edge.LINES, Edge.MALFORMED)
"""The edges any tool-calling episode may take."""


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
    options = [_on_some_stage(plain)]
    keeping = {} if anew else {name: value for name, value in KEEPING.items() if tokenizer.mentions(name)}
    if keeping:
        kept = replace(plain.family, kwargs=keeping)
        options.append(_on_some_stage(ChatRenderer(tokenizer, tools, kept)))
    probe, found = max(options, key=lambda one: (-_count(one[1], Match.UNSUPPORTED), _count(one[1], Match.EXACT)))
    record, stage = probe.renderer.family, probe.renderer.stage
    return SelfCheck(tokenizer=tokenizer.name, record=record, stage=stage, edges=probe.deep(found))


def _on_some_stage(first: ChatRenderer) -> tuple[Probe, Mapping[Edge, Finding]]:
    """The findings on the first stage with nothing unsupported, else on the one with the least."""
    found: list[tuple[Probe, Mapping[Edge, Finding]]] = []
    for stage in STAGES:
        try:
            probe = Probe(ChatRenderer(first.tokenizer, first.tools, first.family, stage))
        except JobFailure:
            continue
        found.append((probe, {edge: probe.find(edge) for edge in Edge}))
        if _count(found[-1][1], Match.UNSUPPORTED) == 0:
            break
    return min(found, key=lambda one: _count(one[1], Match.UNSUPPORTED))


def _count(found: Mapping[Edge, Finding], match: Match) -> int:
    return sum(finding.match is match for finding in found.values())

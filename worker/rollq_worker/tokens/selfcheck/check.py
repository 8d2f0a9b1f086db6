"""The edges of an episode that a chat template supports, compared with our bridges.

Every edge is compared once for each tokenizer, template and set of tools. It does not know
environments or jobs.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.tokens.injection_guard import ControlTokens, Guard
from rollq_worker.tokens.known_families import KEEP_REASONING
from rollq_worker.tokens.made_up_conversation import PREAMBLES, Preamble
from rollq_worker.tokens.model_family import Family
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.bridge_comparison import BridgeComparison, Finding, Match
from rollq_worker.tokens.selfcheck.conversations import Edge
from rollq_worker.tokens.selfcheck.unread_names import unread_name
from rollq_worker.tokens.tokenizer import Tokenizer

NEEDED = (
    Edge.OPEN,
    Edge.CALL,
    Edge.SECOND_CALL,
    Edge.REPLY,
    Edge.REPLY_AFTER_CALL,
    Edge.EMPTY_RESULT,
    Edge.MULTILINE_RESULT,
    Edge.MALFORMED,
)
"""The edges that any tool-calling episode may take."""
MAX_CHECKS = 256
"""Number of self-checks that are kept. Environments may make up tools for every task."""


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """The edges of one tokenizer, template and set of tools."""

    tokenizer: str
    family: Family
    preamble: Preamble
    edges: Mapping[Edge, Finding]
    """The edges that an episode with these tools may take."""
    unreadable_name: str
    """The name of a tool, or of a parameter, that is not read back as the template writes it; ""
    without one.
    """

    def require(self, *edges: Edge, rerender: bool = False) -> None:
        """Raises JobFailure naming the first of these edges that is unsupported, or a name that
        cannot be called.

        `rerender`: the episode renders the conversation again where the template rewrites it, so
        rendering is enough.
        """
        if self.unreadable_name:
            raise JobFailure(
                f"{self.tokenizer}: no call with the name {self.unreadable_name!r} could be read "
                f"as the chat template writes it (format {self.family.parser}): rename that tool "
                "or parameter, of letters, digits, - and _"
            )
        for edge in edges:
            finding = self.edges.get(edge)
            if finding is None or finding.match is not Match.UNSUPPORTED:
                continue
            if rerender and finding.renders:
                continue
            raise JobFailure(
                f"{self.tokenizer}: the chat template does not support the edge {edge.value!r}: "
                f"{finding.why}; use another template or model"
            )

    @property
    def unsupported(self) -> Sequence[Edge]:
        """The unsupported edges among those that any episode may take."""
        return [
            edge
            for edge in NEEDED
            if edge in self.edges and self.edges[edge].match is Match.UNSUPPORTED
        ]

    @property
    def table(self) -> str:
        """The findings as a table, one line per edge."""
        width = max(len(edge) for edge in self.edges)
        lines = []
        for edge, finding in self.edges.items():
            line = f"{edge.value:{width}}  {finding.match.value:11}  {finding.why}"
            lines.append(line.rstrip())
        return "\n".join(lines)


_checks: dict[tuple[str, str, str, bool], SelfCheck] = {}


def check(tokenizer: Tokenizer, tools: Sequence[Json], rerender: bool = False) -> SelfCheck:
    """Classifies every edge for these tools. Raises JobFailure for an unknown family or a prompt
    that cannot be rendered.

    `rerender`: see `SelfCheck.require`. Without it, the template is asked to keep old reasoning
    where that makes more edges exact, because the history keeps it anyway.
    """
    digest = hashlib.sha256(json.dumps(list(tools), sort_keys=True).encode()).hexdigest()
    key = (tokenizer.hash, tokenizer.template_hash, digest, rerender)
    checked = _checks.get(key)
    if checked is None:
        checked = _compare_templates(tokenizer, tools, rerender)
        if len(_checks) >= MAX_CHECKS:
            _checks.clear()
        _checks[key] = checked
    return replace(checked, tokenizer=tokenizer.name)


def checked_renderer(
    tokenizer: Tokenizer, tools: Sequence[Json], *edges: Edge, rerender: bool = False
) -> ChatRenderer:
    """A renderer for these tools.

    Raises JobFailure when an edge that any episode may take, or one of `edges`, is unsupported.
    `rerender`: see `SelfCheck.require`.
    """
    self_check = check(tokenizer, tools, rerender)
    self_check.require(*NEEDED, *edges, rerender=rerender)
    return ChatRenderer(tokenizer, tools, self_check.family, self_check.preamble)


def _compare_templates(tokenizer: Tokenizer, tools: Sequence[Json], rerender: bool) -> SelfCheck:
    """The findings for the template as it is or, where that is better, asked to keep old
    reasoning.
    """
    # Tools may mention control tokens. Marks stand for them, because encoding the rendered text
    # would make tokens of them.
    hidden: list[Json] = Guard(ControlTokens(tokenizer)).hide(list(tools))
    plain = ChatRenderer(tokenizer, hidden)
    options = [_with_best_preamble(plain, rerender)]
    free_arguments = tokenizer.arguments - tokenizer.fixed_arguments.keys()
    keep = {name: value for name, value in KEEP_REASONING.items() if name in free_arguments}
    if keep and not rerender:
        kept = replace(plain.family, template_kwargs=keep)
        options.append(_with_best_preamble(ChatRenderer(tokenizer, hidden, kept), rerender))
    best = max(options, key=lambda option: option.quality)
    renderer = best.comparison.renderer
    return SelfCheck(
        tokenizer=tokenizer.name,
        family=renderer.family,
        preamble=renderer.preamble,
        edges=best.comparison.find_in_long(best.findings),
        unreadable_name=unread_name(renderer, tools),
    )


class _Candidate(NamedTuple):
    """The findings with one preamble."""

    comparison: BridgeComparison
    findings: Mapping[Edge, Finding]

    def count_of(self, match: Match) -> int:
        return sum(finding.match is match for finding in self.findings.values())

    @property
    def quality(self) -> tuple[int, ...]:
        """A sort key: fewer of the worst matches is better, then fewer of the next."""
        return tuple(-self.count_of(match) for match in reversed(Match))


def _with_best_preamble(first: ChatRenderer, rerender: bool) -> _Candidate:
    """The first preamble that leaves no edge unsupported, else the one that leaves the fewest."""
    candidates: list[_Candidate] = []
    for preamble in PREAMBLES:
        try:
            renderer = ChatRenderer(first.tokenizer, first.tools, first.family, preamble)
            comparison = BridgeComparison(renderer, rerender)
        except JobFailure:
            continue  # the template refuses it; `first` has shown that it takes one of them
        candidate = _Candidate(comparison, comparison.find_in_short())
        if candidate.count_of(Match.UNSUPPORTED) == 0:
            return candidate
        candidates.append(candidate)
    return min(candidates, key=lambda candidate: candidate.count_of(Match.UNSUPPORTED))

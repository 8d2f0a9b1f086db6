"""Check of a tokenizer and its chat template: which edges are exact, which arguments the template
reads, and the remedy where it cannot be used.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.errors import JobFailure, RollqError
from rollq.servers.health import Finding, Level
from rollq_worker.tokens.model_family import Family
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.better_template import better_template, exact_edges
from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.check import SelfCheck, check
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer

Tools = Sequence[Mapping[str, Any]]
NAME = "tokenizer"
LOAD_TOKENIZER = "give --tokenizer the directory of a model's tokenizer"
REMEDY = (
    "no training template fits it: use another chat template (--template FILE) or another model, "
    "or describe its family and its format of calls in a package of your own (docs/formats.md)"
)


def check_tokenizer(
    where: str | None, template: str | None, arguments: Mapping[str, Any], tools: Tools
) -> tuple[Tokenizer | None, Finding]:
    """Loads the tokenizer and classes every edge of its template for these tools, rendered with
    these arguments.
    """
    try:
        plain = load_tokenizer(where, template)
    except RollqError as e:
        return None, Finding(NAME, Level.FAIL, str(e), LOAD_TOKENIZER)
    details = {"tokenizer": plain.name, "arguments": sorted(plain.arguments)}
    try:
        tokenizer = plain.with_arguments(arguments)
        self_check = check(tokenizer, [dict(tool) for tool in tools])
    except JobFailure as e:
        training, remedy = _training_template(plain, tools, None)
        details |= {"reason": str(e), "training_template": training}
        if arguments:
            remedy = "correct --template-kwargs"
        lines = _argument_lines(plain, {})
        return plain, Finding(NAME, Level.FAIL, str(e), remedy or REMEDY, lines, details)
    return tokenizer, _finding(tokenizer, self_check, tools, details)


def _finding(
    tokenizer: Tokenizer, self_check: SelfCheck, tools: Tools, details: Mapping[str, Any]
) -> Finding:
    family = self_check.family
    renderer = ChatRenderer(tokenizer, list(tools), family, self_check.preamble)
    stops = [tokenizer.decode([id]) for id in renderer.stop_ids]
    training, remedy = _training_template(tokenizer, tools, self_check)
    details = {
        **details,
        "family": family.name,
        "parser": family.parser,
        "stop_tokens": stops,
        "template_kwargs": {**family.template_kwargs, **tokenizer.fixed_arguments},
        "training_template": training,
        "edges": {
            edge.value: {"class": seen.match.value, "why": seen.why}
            for edge, seen in self_check.edges.items()
        },
    }
    lines = [
        *self_check.table.splitlines(),
        _counts(self_check),
        *_system_lines(family),
        *_argument_lines(tokenizer, family.template_kwargs),
    ]
    if any(seen.match.value == "rewrite" for seen in self_check.edges.values()):
        lines.append(
            "rewrite: history stays as it was sampled, unless a job asks for history=template"
        )
    says = (
        f"{tokenizer.name}: family {family.name}, calls in the {family.parser} format, turns end "
        f"with {' '.join(stops)}"
    )
    if self_check.unsupported:
        remedy = f"the edge {self_check.unsupported[0].value!r} is unsupported: {remedy or REMEDY}"
        return Finding(NAME, Level.FAIL, says, remedy, lines, details)
    return Finding(NAME, Level.OK, says, "", [*lines, remedy] if remedy else lines, details)


def _counts(self_check: SelfCheck) -> str:
    """Number of edges of each class."""
    counts = Counter(seen.match for seen in self_check.edges.values())
    classes = ", ".join(f"{counts[match]} {match.value}" for match in Match)
    return f"{len(self_check.edges)} edges: {classes}"


def _system_lines(family: Family) -> list[str]:
    """A line where the template refuses or loses system messages, as agent programs send them."""
    if family.system_in_user:
        return ["the template takes no system message: it is shown as the user's"]
    if family.one_system:
        return [
            "the template takes one system message: several at the beginning are joined, and a "
            "later one is shown as the user's"
        ]
    return []


def _argument_lines(tokenizer: Tokenizer, added: Mapping[str, Any]) -> list[str]:
    """Arguments that the template reads, and those that rollq adds."""
    lines = ["the template reads no arguments"]
    if tokenizer.arguments:
        names = ", ".join(sorted(tokenizer.arguments))
        lines = [f"arguments of the template (--template-kwargs): {names}"]
    for name, value in added.items():
        lines.append(
            f"rollq adds {name}={json.dumps(value)}, which keeps old reasoning; not for jobs with "
            "history=template"
        )
    return lines


def _training_template(
    tokenizer: Tokenizer, tools: Tools, self_check: SelfCheck | None
) -> tuple[str, str]:
    """The name of the training template that does better than the tokenizer's own template, and the
    remedy; two empty texts where there is none.
    """
    better = better_template(tokenizer, [dict(tool) for tool in tools], self_check)
    if better is None:
        return "", ""
    name, its_check = better
    exact = exact_edges(its_check)
    edges = len(its_check.edges)
    share = "all edges" if exact == edges else f"{exact} of {edges} edges"
    return name, (
        f"the training template {name} is exact on {share}: use --template {name}, or "
        f"ROLLQ_TEMPLATE={name}"
    )

"""What `rollq doctor` says of a tokenizer and its chat template: how far it is exact, which
arguments it reads, and what to do where it cannot be used.

It knows neither engines nor Redis.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.errors import JobFailure, RollqError
from rollq.servers.health import Finding, Level
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.better_template import better_template, exact_edges
from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.check import SelfCheck, check
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer

REMEDY = (
    "no training template fits it: use another chat template (--template FILE) or "
    "another model, or describe its family"
    " and its format of calls in a package of your own (docs/formats.md)"
)
ARGUMENTS = "correct --template-kwargs"


def check_tokenizer(
    where: str | None,
    template: str | None,
    given: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
) -> tuple[Tokenizer | None, Finding]:
    """Load the tokenizer and class every edge of its template for these tools, rendered with the
    arguments `given`.
    """
    try:
        plain = load_tokenizer(where, template)
    except RollqError as e:
        return None, Finding(
            "tokenizer", Level.FAIL, str(e), "give --tokenizer the directory of a model's tokenizer"
        )
    details = {"tokenizer": plain.name, "arguments": sorted(plain.arguments)}
    try:
        tokenizer = plain.with_arguments(given)
    except JobFailure as e:
        return plain, Finding(
            "tokenizer", Level.FAIL, str(e), ARGUMENTS, _arguments(plain, {}), details
        )
    try:
        self_check = check(tokenizer, [dict(tool) for tool in tools])
    except JobFailure as e:
        if given and _usable(plain, tools):
            return tokenizer, Finding(
                "tokenizer", Level.FAIL, str(e), ARGUMENTS, _arguments(tokenizer, {}), details
            )
        return tokenizer, _refused(tokenizer, e, tools, details)
    return tokenizer, _checked(tokenizer, self_check, tools, details)


def _usable(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> bool:
    try:
        return not check(tokenizer, [dict(tool) for tool in tools]).missing
    except JobFailure:
        return False


def _refused(
    tokenizer: Tokenizer,
    why: JobFailure,
    tools: Sequence[Mapping[str, Any]],
    details: Mapping[str, Any],
) -> Finding:
    """The template cannot be used with tools."""
    training, use = _training_template(tokenizer, tools, None)
    lines = _arguments(tokenizer, {})
    details = {**details, "reason": str(why), "training_template": training}
    if tools:
        try:
            lines.append(f"without tools: {_counts(check(tokenizer, []))}")
        except JobFailure as e:
            lines.append(f"without tools: {e}")
    return Finding("tokenizer", Level.FAIL, str(why), use or REMEDY, lines, details)


def _checked(
    tokenizer: Tokenizer,
    self_check: SelfCheck,
    tools: Sequence[Mapping[str, Any]],
    details: Mapping[str, Any],
) -> Finding:
    family = self_check.family
    renderer = ChatRenderer(tokenizer, list(tools), family, self_check.preamble)
    stops = [tokenizer.decode([id]) for id in renderer.stop_ids]
    training, use = _training_template(tokenizer, tools, self_check)
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
    says = (
        f"{tokenizer.name}: family {family.name}, calls in the {family.parser} "
        "format, turns end with"
    )
    says = f"{says} {' '.join(stops)}"
    lines = [
        *self_check.table.splitlines(),
        _counts(self_check),
        *_arguments(tokenizer, family.template_kwargs),
    ]
    if family.system_in_user:
        lines.append(
            "the template takes no system prompt, so it stands before the user's first message"
        )
    if family.call_text is not None and tools:
        lines.append("the template has no place for calls, so the history has them as text")
    if any(edge["class"] == "rewrite" for edge in details["edges"].values()):
        lines.append(
            "rewrite: history stays as it was sampled, unless a job asks for history=template"
        )
    if self_check.missing:
        step = f"the edge {self_check.missing[0].value!r} is unsupported: {use or REMEDY}"
        return Finding("tokenizer", Level.FAIL, says, step, lines, details)
    return Finding("tokenizer", Level.OK, says, "", [*lines, use] if use else lines, details)


def _counts(self_check: SelfCheck) -> str:
    """How many edges are of each class."""
    counted = Counter(seen.match for seen in self_check.edges.values())
    return f"{len(self_check.edges)} edges: " + ", ".join(
        f"{counted[match]} {match.value}" for match in Match
    )


def _arguments(tokenizer: Tokenizer, asked: Mapping[str, Any]) -> list[str]:
    """Which arguments the template reads, and which it gets. `asked`: those by which it keeps old
    reasoning.
    """
    known = ", ".join(sorted(tokenizer.arguments))
    lines = [
        f"arguments of the template (--template-kwargs): {known}"
        if known
        else "the template reads no arguments"
    ]
    if tokenizer.fixed_arguments:
        lines.append(f"given to the template: {_list(tokenizer.fixed_arguments)}")
    if asked:
        lines.append(
            f"rollq adds {_list(asked)}, which keeps old reasoning; not for jobs "
            "with history=template"
        )
    return lines


def _list(values: Mapping[str, Any]) -> str:
    """As a command line has them."""
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()
    )


def _training_template(
    tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]], self_check: SelfCheck | None
) -> tuple[str, str]:
    """The name of the training template that does better than the tokenizer's own template, and
    what to do; "" and "" where there is none.
    """
    better = better_template(tokenizer, [dict(tool) for tool in tools], self_check)
    if better is None:
        return "", ""
    name, exact = better[0], exact_edges(better[1])
    of = (
        "all edges" if exact == len(better[1].edges) else f"{exact} of {len(better[1].edges)} edges"
    )
    return (
        name,
        f"the training template {name} is exact on {of}: use --template {name}, or "
        f"ROLLQ_TEMPLATE={name}",
    )

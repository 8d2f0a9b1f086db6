"""Finds the training template that fits a model's own chat template.

It fits when it writes the same first prompts, id for id. Where only the training template lists
tools, the model is recognised by the prompt without tools, to which the training template may add
lines, or by an image in it. It does not know what a model was trained on.
"""

from collections.abc import Sequence

from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.family_detection import shows_tools
from rollq_worker.tokens.images import PLACEHOLDER
from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.check import SelfCheck, check
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.tokens.training_templates import template_text, training_templates

_USER: Message = {"role": "user", "content": "Where is it?"}
_OPENINGS: Sequence[Sequence[Message]] = (
    [{"role": "system", "content": "Be brief."}, _USER],
    [_USER],
)
_IMAGE: Message = {
    "role": "user",
    "content": [{"type": "image"}, {"type": "text", "text": "Where is it?"}],
}
_OWN_WORDS = 200
"""Number of characters of a template's own text in a first prompt that tell its model from others.
"""


def better_template(
    tokenizer: Tokenizer, tools: Sequence[Json], own_check: SelfCheck | None
) -> tuple[str, SelfCheck] | None:
    """The training template that makes more edges exact than the tokenizer's own template, with its
    self-check.

    `own_check` is the self-check of the own template, None if the template was refused.
    """
    for name in training_templates():
        try:
            other = tokenizer.with_template(template_text(name))
            other = other.with_arguments(tokenizer.fixed_arguments)
            if not _same_model(tokenizer, other, tools):
                continue
            better = check(other, tools)
        except JobFailure:
            continue
        if better.unsupported:
            continue
        if own_check is None or exact_edges(better) > exact_edges(own_check):
            return name, better
    return None


def exact_edges(self_check: SelfCheck) -> int:
    """The number of exact edges."""
    return sum(finding.match is Match.EXACT for finding in self_check.edges.values())


def _same_model(own: Tokenizer, other: Tokenizer, tools: Sequence[Json]) -> bool:
    if shows_tools(own) == shows_tools(other):
        shown = [(opening, listed) for opening in _OPENINGS for listed in (tools, None)]
        return all(
            _prompt(own, *conversation) == _prompt(other, *conversation) for conversation in shown
        )
    lines = _prompt(own, [_USER], None).splitlines()
    is_recognised = len("".join(lines)) > _OWN_WORDS or _shows_same_image(own, other)
    if not is_recognised:
        return False
    other_lines = iter(_prompt(other, [_USER], None).splitlines())
    return all(line in other_lines for line in lines)  # in the same order, with more between


def _shows_same_image(own: Tokenizer, other: Tokenizer) -> bool:
    shown = _prompt(own, [_IMAGE], None)
    return PLACEHOLDER in shown and shown == _prompt(other, [_IMAGE], None)


def _prompt(tokenizer: Tokenizer, opening: Sequence[Message], tools: Sequence[Json] | None) -> str:
    """The first prompt; "" where the template refuses it."""
    try:
        return tokenizer.render(opening, tools, add_generation_prompt=True)
    except JobFailure:
        return ""

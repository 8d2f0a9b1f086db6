"""How a chat template writes the contents of one shape.

Contents that it may treat in a way of their own are not written here: those with a text that the template looks for,
those of white space alone, and those with white space at an edge where the template's way with it is not known.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from rollq_worker.tokens.injection_guard import ControlTokens, Guard


class Edges(StrEnum):
    """What becomes of white space at the edges of a content."""

    KEPT = "kept"
    STRIPPED = "stripped"
    UNKNOWN = "unknown"


def as_json(text: str) -> str:
    """As in a JSON string, without its quotes: those are the template's own text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


FORMS: tuple[Callable[[str], str], ...] = (str, as_json)
"""The ways in which templates write a content."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A form, and the texts for which it is not known to hold."""

    controls: ControlTokens
    form: Callable[[str], str]
    edges: Edges
    unlike: re.Pattern[str] | None
    """Finds a text that the template may look for; None: it looks for none."""
    equal: frozenset[str]
    """Whole contents with which the template compares, as `folded` gives them."""

    def write(self, content: str) -> str | None:
        """The content as the template writes it; None: only the template knows."""
        guard = None
        if not self.controls.is_harmless(content):
            guard = Guard(self.controls)
            content = guard.hide(content)
        if content.strip().casefold() in self.equal or (self.unlike and self.unlike.search(content)):
            return None
        if content[:1].isspace() or content[-1:].isspace():
            if self.edges is Edges.UNKNOWN or content.isspace():
                return None
            if self.edges is Edges.STRIPPED:
                content = content.strip()
        written = self.form(content)
        return written if guard is None else guard.restore(written)


def folded(texts: Iterable[str]) -> frozenset[str]:
    """These texts without the differences that a template may pass over."""
    return frozenset(text.strip().casefold() for text in texts)


def any_text(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of these texts; None for no texts."""
    pattern = "|".join(map(re.escape, sorted(texts)))
    return re.compile(pattern) if pattern else None

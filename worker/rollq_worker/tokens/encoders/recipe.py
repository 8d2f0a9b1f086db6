"""What tiktoken needs to know to encode as a tokenizer does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A vocabulary as tiktoken takes it."""

    pattern: str
    """The regular expression that finds the words; nothing is merged across them."""
    tokens: Mapping[bytes, tuple[int, ...]]
    """The tokens in the order in which they are made, single bytes first, each with the ids that it stands for."""
    prepare: Callable[[str], str | None]
    """The text as it is encoded; None for a text that only the tokenizer itself can encode."""

"""The texts of single tokens on a page, where the run's tokenizer is at hand. The light client has
none.

Nothing on a page depends on them. They are shown only when they spell what the messages say, so
that another model's tokenizer shows nothing in place of nonsense.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from rollq.errors import RollqError
from rollq.worker_package import for_clients

Texts = Callable[[Sequence[int]], list[str]]
"""The texts of ids, which side by side are their text."""
COMPARED = 40
"""Number of characters of a message that its tokens must spell."""


def load_texts(tokenizer: str | None) -> Texts:
    """Texts of tokens by a tokenizer that was named, or else by the one that rollq ships, which is
    loaded at its first use. Gives no texts where the worker's package, or a package that it needs,
    is not installed.

    Raises RollqError for a tokenizer that was named and cannot be loaded.
    """
    if tokenizer is not None:
        return _load(tokenizer)
    later = cache(partial(_load, None))
    return lambda ids: later()(ids)


def _load(tokenizer: str | None) -> Texts:
    try:
        texts: Texts = for_clients().token_texts(tokenizer)
    except ImportError:
        return lambda ids: []
    return texts


def with_texts(page: dict[str, Any], texts: Texts | None) -> dict[str, Any]:
    """The page, with `texts` in each of its turns if they are this model's."""
    turns = [entry for entry in page["entries"] if entry["turn"] is not None and entry["ids"]]
    if texts is None or not turns:
        return page
    try:
        texts_by_turn = [texts(entry["ids"]) for entry in turns]
    except (OverflowError, TypeError, ValueError, RollqError):
        return page  # ids that the vocabulary does not have
    pairs = [*zip(turns, texts_by_turn, strict=True)]
    if all(_spell(token_texts, entry) for entry, token_texts in pairs):
        for entry, token_texts in pairs:
            entry["texts"] = token_texts
    return page


def _spell(token_texts: Sequence[str], entry: Mapping[str, Any]) -> bool:
    """True if the texts are as many as the ids, and spell the turn."""
    parts = [entry["text"].strip()[:COMPARED].rstrip(), *(call["name"] for call in entry["calls"])]
    text = "".join(token_texts)
    return len(token_texts) == len(entry["ids"]) and all(part in text for part in parts)

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
"""Number of characters of a message that must be found in what its tokens spell."""


def load_texts(tokenizer: str | None) -> Texts:
    """By a tokenizer that was named, or else by the one that rollq ships, which is loaded when it
    is first asked. Gives no texts where the worker's package, or a package that it needs, is not
    installed.

    Raises RollqError for a tokenizer that was named and cannot be loaded.
    """
    if tokenizer is not None:
        return _load(tokenizer)
    later = cache(partial(_load, None))
    return lambda ids: later()(ids)


def _load(tokenizer: str | None) -> Texts:
    try:
        found: Texts = for_clients().token_texts(tokenizer)
    except ImportError:
        return lambda ids: []
    return found


def with_texts(page: dict[str, Any], texts: Texts | None) -> dict[str, Any]:
    """The page, with `texts` in each of its turns if they are this model's."""
    turns = [entry for entry in page["entries"] if entry["turn"] is not None and entry["ids"]]
    if texts is None or not turns:
        return page
    try:
        found = [texts(entry["ids"]) for entry in turns]
    except (
        OverflowError,
        TypeError,
        ValueError,
        RollqError,
    ):  # ids that the vocabulary does not have
        return page
    if all(_spell(words, entry) for words, entry in zip(found, turns, strict=True)):
        for words, entry in zip(found, turns, strict=True):
            entry["texts"] = words
    return page


def _spell(words: Sequence[str], entry: Mapping[str, Any]) -> bool:
    said = [entry["text"].strip()[:COMPARED].rstrip(), *(call["name"] for call in entry["calls"])]
    text = "".join(words)
    return len(words) == len(entry["ids"]) and all(part in text for part in said)

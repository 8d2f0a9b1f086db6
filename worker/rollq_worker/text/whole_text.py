"""Text as UTF-8 can hold it.

Text that enters an episode from outside goes through here once, so that no journal and no file
holds half a surrogate pair. A JSON reader makes such halves of `\\ud83d`, and other programs
refuse files that have them.
"""

from collections.abc import Mapping

from rollq.job import Json


def whole_characters(text: str) -> str:
    """The text, with U+FFFD in place of half a surrogate pair; two halves side by side are their
    character.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def whole_json(value: Json) -> Json:
    """A JSON value with whole characters in all its texts and keys."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, Mapping):
        return {whole_characters(key): whole_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_json(item) for item in value]
    return value

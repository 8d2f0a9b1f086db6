"""The text of each token, for people who look at a rollout (`rollq view`)."""

from collections.abc import Callable, Sequence
from functools import partial

from rollq_worker.tokens.tokenizer import load_tokenizer

UNFINISHED = "\ufffd"
"""What bytes that are no whole character are decoded to."""


def token_texts(where: str | None) -> Callable[[Sequence[int]], list[str]]:
    """A function that gives the text of each id, by the tokenizer of that name or directory; None:
    the one that rollq ships. Raises SettingsError.
    """
    return partial(texts_of, load_tokenizer(where).decode)


def texts_of(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """The texts of these ids, which make `decode(ids)` side by side. A character that several
    tokens spell is the last one's, and the others are empty.
    """
    texts: list[str] = []
    before, begun = (
        0,
        0,
    )  # what is decoded as context, and where the character that is being spelt begins
    for place in range(len(ids)):
        text = decode(ids[before : place + 1])
        # So many tokens at most are taken together because they spell one character.
        last = place + 1 == len(ids) or place - begun + 1 >= 8
        if text.endswith(UNFINISHED) and not last:
            texts.append("")
            continue
        texts.append(text[len(decode(ids[before:begun])) :])
        before, begun = begun, place + 1
    return texts

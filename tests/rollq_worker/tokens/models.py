"""Tokenizers for tests: real chat templates with each family's control tokens added to a vocabulary.

The bundled vocabulary is the quick one; what a template does does not depend on it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer

THINK = ["<think>", "</think>"]
GLM = [
    *["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", *THINK],
    *["<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
]
DEEPSEEK = [
    *["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", *THINK, "<｜tool▁sep｜>"],
    *["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
    *["<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"],
]
LLAMA = [
    *["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"],
    "<|python_tag|>",
    *[f"<|reserved_special_token_{n}|>" for n in range(60)],
]
MISTRAL = [
    *["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[ARGS]"],
    *["[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[CALL_ID]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]"],
]
KIMI = [
    *["[BOS]", "[EOS]", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", *THINK],
    *["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"],
    "<|tool_call_argument_begin|>",
]
HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"]
GEMMA = [
    *["<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|think|>"],
    *["<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'],
]
ADDED: dict[str, list[str]] = {
    "llama-3.1": LLAMA,
    "mistral-nemo": MISTRAL,
    "glm-4.6": GLM,
    "glm-4.7": GLM,
    "deepseek-v3.1": DEEPSEEK,
    "minimax-m2": ["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>", *THINK],
    "gpt-oss": HARMONY,
    "gemma-4": GEMMA,
    "granite-4.0": ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"],
    "seed-oss": [
        *["<seed:bos>", "<seed:eos>", "<seed:pad>", "<seed:tool_call>", "</seed:tool_call>"],
        *["<seed:think>", "</seed:think>"],
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


class Models:
    """Makes tokenizers; `shared` is the folder with the real vocabulary and templates."""

    def __init__(self, shared: Path) -> None:
        self.templates = shared / "data" / "chat_templates"
        self._qwen = shared / "data" / "qwen"
        self._spec = json.loads((BUNDLED / "tokenizer.json").read_text())
        self._spec_of = cache(self._with)

    @property
    def names(self) -> list[str]:
        """All real templates."""
        return sorted(path.stem for path in self.templates.glob("*.jinja"))

    def text(self, name: str) -> str:
        """A real template."""
        return (self.templates / f"{name}.jinja").read_text()

    def real(self, name: str) -> Tokenizer:
        """A real template with its family's tokens."""
        return self.made(name, self.text(name), ADDED.get(name, []), NAMED.get(name))

    def qwen(self, name: str) -> Tokenizer:
        """A real template on the real Qwen vocabulary."""
        config = json.loads((self._qwen / "tokenizer_config.json").read_text())
        return Tokenizer(name, (self._qwen / "tokenizer.json").read_bytes(), config, self.text(name))

    def made(
        self, name: str, template: str, added: list[str] | None = None, config: dict[str, Any] | None = None
    ) -> Tokenizer:
        """Any template with more control tokens."""
        return Tokenizer(name, self._spec_of(tuple(added or ())), config or {}, template)

    def _with(self, added: tuple[str, ...]) -> bytes:
        tokens = list(self._spec["added_tokens"])
        known = {token["content"] for token in tokens}
        for text in added:
            if text not in known:
                flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
                tokens.append(
                    {"id": 1 + max(token["id"] for token in tokens), "content": text, "special": True} | flags
                )
        return json.dumps(self._spec | {"added_tokens": tokens}).encode()

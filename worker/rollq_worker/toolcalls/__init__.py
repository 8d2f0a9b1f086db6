"""Reads tool calls and reasoning out of a sampled turn; one module per format.

No text is lost: everything that is neither a readable call nor reasoning stays in the content, broken calls and their
tags included. Readers never raise and never repair a call. They do not know which tools exist; schemas only give types
to values that a format writes without quotes.
"""

from collections.abc import Mapping

from rollq_worker.toolcalls.gemma4 import GEMMA4
from rollq_worker.toolcalls.glm45 import GLM45
from rollq_worker.toolcalls.gpt_oss import GPT_OSS
from rollq_worker.toolcalls.hermes import HERMES
from rollq_worker.toolcalls.llama3 import LLAMA3
from rollq_worker.toolcalls.markup import DEEPSEEK_V32, MINIMAX_M2, QWEN3_CODER, SEED
from rollq_worker.toolcalls.mistral import MISTRAL
from rollq_worker.toolcalls.pieces import Reader
from rollq_worker.toolcalls.sections import DEEPSEEK_V31, KIMI_K2

PARSERS: Mapping[str, Reader] = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "seed": SEED,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "glm45": GLM45,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": DEEPSEEK_V32,
    "kimi_k2": KIMI_K2,
    "minimax_m2": MINIMAX_M2,
    "gpt_oss": GPT_OSS,
    "gemma4": GEMMA4,
}
"""The readers, by the names in the records of model families."""

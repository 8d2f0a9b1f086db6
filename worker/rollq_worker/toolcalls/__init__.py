"""Reads tool calls and reasoning out of a sampled turn; one module a format.

No text is lost: what is neither a readable call nor reasoning stays in the content, a broken call with its tags
included. Readers never raise, never mend a call, and do not know which tools exist; schemas only give types to values
that a format writes without any.
"""

from collections.abc import Mapping

from rollq_worker.toolcalls.arguments import MAX_DEPTH
from rollq_worker.toolcalls.deepseek_v31 import read_deepseek_v31
from rollq_worker.toolcalls.gemma4 import THINK as GEMMA_THINK
from rollq_worker.toolcalls.gemma4 import read_gemma4
from rollq_worker.toolcalls.glm45 import read_glm45
from rollq_worker.toolcalls.gpt_oss import read_gpt_oss
from rollq_worker.toolcalls.hermes import FORM, hermes_pieces, read_hermes
from rollq_worker.toolcalls.kimi_k2 import read_kimi_k2
from rollq_worker.toolcalls.llama3 import read_llama3
from rollq_worker.toolcalls.markup import CODER, DEEPSEEK, MINIMAX, SEED
from rollq_worker.toolcalls.mistral import THINK as MISTRAL_THINK
from rollq_worker.toolcalls.mistral import read_mistral
from rollq_worker.toolcalls.pieces import THINK, Kind, Piece, Reader

PARSERS: Mapping[str, Reader] = {
    "hermes": read_hermes,
    "qwen3_coder": CODER.read,
    "seed": SEED.read,
    "llama3": read_llama3,
    "mistral": read_mistral,
    "glm45": read_glm45,
    "deepseek_v31": read_deepseek_v31,
    "deepseek_v32": DEEPSEEK.read,
    "kimi_k2": read_kimi_k2,
    "minimax_m2": MINIMAX.read,
    "gpt_oss": read_gpt_oss,
    "gemma4": read_gemma4,
}
"""Readers by the name that a family's record gives."""
_THINKS = {"seed": SEED.think, "mistral": MISTRAL_THINK, "gemma4": GEMMA_THINK}


def think_tags(parser: str) -> tuple[str, str]:
    """What opens and closes reasoning in the text of a turn that this reader reads."""
    return _THINKS.get(parser, THINK)


__all__ = ["FORM", "MAX_DEPTH", "PARSERS", "Kind", "Piece", "Reader", "hermes_pieces", "read_hermes", "think_tags"]

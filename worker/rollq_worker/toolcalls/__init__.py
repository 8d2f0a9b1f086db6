"""Reads tool calls and reasoning out of a sampled turn; one module of `formats/` per format.

No text is lost: everything that is neither a readable call nor reasoning stays in the content,
broken calls and their tags included. Readers never raise and never repair a call. They do not know
which tools exist; schemas only give types to values that a format writes without quotes. Installed
packages add readers: see docs/formats.md.
"""

from collections.abc import Mapping
from functools import cache

from rollq_worker.extensions.plug_ins import plug_ins, with_plug_ins
from rollq_worker.toolcalls.formats.functionary import FUNCTIONARY32
from rollq_worker.toolcalls.formats.gemma4 import GEMMA4
from rollq_worker.toolcalls.formats.glm45 import GLM45, HUNYUAN3
from rollq_worker.toolcalls.formats.gpt_oss import GPT_OSS
from rollq_worker.toolcalls.formats.json_lists import (
    APERTUS,
    APRIEL,
    COHERE,
    GIGACHAT3,
    GIGACHAT31,
    GRANITE3,
    HERMES,
    MINIMAX_M1,
    NEMOTRON_V2,
)
from rollq_worker.toolcalls.formats.llama3 import LLAMA3
from rollq_worker.toolcalls.formats.markup import (
    DEEPSEEK_V32,
    KIMI_K3,
    MINICPM5,
    MINIMAX_M2,
    QWEN3_CODER,
    SEED,
)
from rollq_worker.toolcalls.formats.messages import INKLING, MUSE
from rollq_worker.toolcalls.formats.mistral import MISTRAL
from rollq_worker.toolcalls.formats.nested_markup import MINIMAX_M3
from rollq_worker.toolcalls.formats.pythonic import LFM2, PYTHONIC
from rollq_worker.toolcalls.formats.sections import DEEPSEEK_V31, FUNCTIONARY31, KIMI_K2, SOLAR
from rollq_worker.toolcalls.pieces import Reader, block_reader

NO_CALLS = "no_calls"
"""The reader of turns that are text and reasoning."""
GROUP = "rollq.readers"
"""The entry points of readers: a name, and a `Reader`."""
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
    "cohere": COHERE,
    "granite3": GRANITE3,
    "nemotron_v2": NEMOTRON_V2,
    "apertus": APERTUS,
    "lfm2": LFM2,
    "pythonic": PYTHONIC,
    "functionary_v31": FUNCTIONARY31,
    "functionary_v32": FUNCTIONARY32,
    "solar": SOLAR,
    "gigachat3": GIGACHAT3,
    "gigachat31": GIGACHAT31,
    "apriel": APRIEL,
    "minimax_m1": MINIMAX_M1,
    "hunyuan3": HUNYUAN3,
    "kimi_k3": KIMI_K3,
    "minicpm5": MINICPM5,
    "minimax_m3": MINIMAX_M3,
    "muse": MUSE,
    "inkling": INKLING,
}
"""The readers that come with rollq, by the names in the records of model families."""


@cache
def readers() -> Mapping[str, Reader]:
    """All readers by name, also those of installed packages, which are loaded at the first call.

    Raises JobFailure for a plug-in that is broken or whose name is taken.
    """
    own = {**PARSERS, NO_CALLS: block_reader({})}
    return with_plug_ins(own, ((added.name, added) for added in plug_ins(GROUP, Reader)))

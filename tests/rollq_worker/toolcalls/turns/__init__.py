"""Turns in every format of calls: good ones, broken ones, and ones about which readers may differ."""

from tests.rollq_worker.toolcalls.turns.functionary_formats import FUNCTIONARY31_TURNS, FUNCTIONARY32_TURNS
from tests.rollq_worker.toolcalls.turns.json_formats import HERMES_TURNS, LLAMA_TURNS, MISTRAL_TURNS
from tests.rollq_worker.toolcalls.turns.list_formats import (
    APERTUS_TURNS,
    APRIEL_TURNS,
    COHERE_TURNS,
    GIGACHAT3_TURNS,
    GIGACHAT31_TURNS,
    GRANITE_TURNS,
    MINIMAX_M1_TURNS,
    NEMOTRON_TURNS,
)
from tests.rollq_worker.toolcalls.turns.markup_formats import (
    CODER_TURNS,
    KIMI_K3_TURNS,
    MINICPM_TURNS,
    MINIMAX_TURNS,
    V32_TURNS,
)
from tests.rollq_worker.toolcalls.turns.message_formats import INKLING_TURNS, M3_TURNS, MUSE_TURNS
from tests.rollq_worker.toolcalls.turns.pair_formats import GLM_TURNS, HUNYUAN_TURNS
from tests.rollq_worker.toolcalls.turns.pythonic_formats import LFM2_TURNS, PYTHONIC_TURNS
from tests.rollq_worker.toolcalls.turns.token_formats import (
    DEEPSEEK_TURNS,
    GEMMA_TURNS,
    HARMONY_TURNS,
    KIMI_TURNS,
    SOLAR_TURNS,
)
from tests.rollq_worker.toolcalls.turns.turn import TOOLS, Turn

TURNS = [
    *HERMES_TURNS,
    *CODER_TURNS,
    *GLM_TURNS,
    *MINIMAX_TURNS,
    *V32_TURNS,
    *LLAMA_TURNS,
    *MISTRAL_TURNS,
    *DEEPSEEK_TURNS,
    *KIMI_TURNS,
    *HARMONY_TURNS,
    *GEMMA_TURNS,
    *COHERE_TURNS,
    *APERTUS_TURNS,
    *GRANITE_TURNS,
    *NEMOTRON_TURNS,
    *LFM2_TURNS,
    *PYTHONIC_TURNS,
    *FUNCTIONARY31_TURNS,
    *FUNCTIONARY32_TURNS,
    *SOLAR_TURNS,
    *GIGACHAT3_TURNS,
    *GIGACHAT31_TURNS,
    *APRIEL_TURNS,
    *MINIMAX_M1_TURNS,
    *HUNYUAN_TURNS,
    *KIMI_K3_TURNS,
    *MINICPM_TURNS,
    *M3_TURNS,
    *MUSE_TURNS,
    *INKLING_TURNS,
]
__all__ = ["TOOLS", "TURNS", "Turn"]

"""Turns in every format of calls: good ones, broken ones, and ones about which readers
may differ.
"""

from tests.rollq_worker.toolcalls.turns import (
    functionary_formats,
    json_formats,
    list_formats,
    markup_formats,
    message_formats,
    pair_formats,
    pythonic_formats,
    token_formats,
)
from tests.rollq_worker.toolcalls.turns.turn import TOOLS, Turn

TURNS = [
    *functionary_formats.TURNS,
    *json_formats.TURNS,
    *list_formats.TURNS,
    *markup_formats.TURNS,
    *message_formats.TURNS,
    *pair_formats.TURNS,
    *pythonic_formats.TURNS,
    *token_formats.TURNS,
]
__all__ = ["TOOLS", "TURNS", "Turn"]

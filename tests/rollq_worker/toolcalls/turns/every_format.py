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
    tag_formats,
    token_formats,
)
from tests.rollq_worker.toolcalls.turns.turn import Turn

TURNS: list[Turn] = [
    *functionary_formats.TURNS,
    *json_formats.TURNS,
    *list_formats.TURNS,
    *markup_formats.TURNS,
    *message_formats.TURNS,
    *pair_formats.TURNS,
    *pythonic_formats.TURNS,
    *tag_formats.TURNS,
    *token_formats.TURNS,
]

"""Turns of formats that differ from another one in their tags, or in where white space counts."""

from collections.abc import Sequence

from tests.rollq_worker.toolcalls.turns.turn import (
    FULL,
    LENIENT,
    Turn,
    f,
    turns_of,
)
from tests.rollq_worker.toolcalls.written import WRITE

TRIMMED = "a line break at the end of a value goes"


def good_turns(format: str, trims: str = "") -> Sequence[Turn]:
    """Whole calls. `trims` says how SGLang reads the last line break of a value."""
    turn, write = turns_of(format), WRITE[format]
    return [
        turn("one call", write("f", {"s": "hi"}), calls=[f(s="hi")]),
        turn("every type", write("f", FULL), calls=[f(**FULL)]),
        turn("a last line break", write("f", {"s": "a\n"}), calls=[f(s="a\n")], sglang=trims),
    ]


olmo = turns_of("olmo3")
xlam = turns_of("xlam")
horizon = turns_of("k2_horizon_typed")
TURNS = [
    *good_turns("deepseek_v41", trims=TRIMMED),
    *good_turns("mimo_v2"),
    *good_turns("dots", trims=TRIMMED),
    *good_turns("step3", trims=TRIMMED),
    *good_turns("k2_horizon"),
    *good_turns("k2_horizon_typed"),
    horizon(
        "no type",
        WRITE["k2_horizon"]("f", {"s": "hi"}),
        error="is not a key, a type and a value",
        sglang=LENIENT,
    ),
    *good_turns("k2_horizon_json"),
    *good_turns("longcat"),
    turns_of("longcat")(
        "reasoning", "<longcat_think>hm</longcat_think>Hi.", content="Hi.", reasoning="hm"
    ),
    *good_turns("olmo3"),
    olmo(
        "a list of calls",
        '<function_calls>[f(s="hi")]</function_calls>',
        error='Write name(argument="value", ...) on a line',
    ),
    olmo("no calls", "<function_calls></function_calls>", error="no tool call between the tags"),
    xlam(
        "another key first",
        '[{"id": 1, "name": "f", "arguments": {"s": "hi"}}]',
        calls=[f(s="hi")],
    ),
    xlam("JSON that was asked for", '[{"name": "Ann"}]', content='[{"name": "Ann"}]'),
    xlam("half a list", '[{"name": "f", "arguments": {}}', error="cut off"),
    xlam("a number", '[{"name": "f", "arguments": {}}, 3]', error="not a JSON object"),
    *good_turns("intern_s1"),
]

"""Turns of formats that differ from another one in their tags, or in where white space counts."""

from collections.abc import Sequence

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import (
    FULL,
    LENIENT,
    TAIL,
    TYPES,
    UNKNOWN,
    Turn,
    f,
    turns_of,
)
from tests.rollq_worker.toolcalls.written import WRITE

TRIMMED = "a line break at the end of a value goes"


def good_turns(format: str, trims: str = "", tail: str = TAIL) -> Sequence[Turn]:
    """Whole calls. `trims` and `tail` say how SGLang reads the last line break of a value, and text
    behind a call.
    """
    turn, write = turns_of(format), WRITE[format]
    one = write("f", {"s": "hi"})
    unknown = Action("h", {"s": "hi"})
    return [
        turn("one call", one, calls=[f(s="hi")]),
        turn("every type", write("f", FULL), calls=[f(**FULL)]),
        turn("no arguments", write("g", {}), calls=[Action("g", {})]),
        turn("a number as text", write("f", {"s": "007"}), calls=[f(s="007")]),
        turn("a last line break", write("f", {"s": "a\n"}), calls=[f(s="a\n")], sglang=trims),
        turn("text behind", f"{one}\nDone?", calls=[f(s="hi")], content="Done?", sglang=tail),
        turn("an unknown tool", write("h", {"s": "hi"}), calls=[unknown], sglang=UNKNOWN),
    ]


def untyped(format: str, sglang: str) -> Turn:
    text = WRITE[format]("f", {"n": "two"})
    return turns_of(format)("words for a number", text, error="type integer", sglang=sglang)


olmo = turns_of("olmo3")
xlam = turns_of("xlam")
horizon = turns_of("k2_horizon_typed")
TURNS = [
    *good_turns("deepseek_v41", trims=TRIMMED),
    *good_turns("mimo_v2"),
    untyped("mimo_v2", TYPES),
    *good_turns("dots", trims=TRIMMED),
    untyped("dots", TYPES),
    *good_turns("step3", trims=TRIMMED, tail=""),
    untyped("step3", TYPES),
    *good_turns("k2_horizon", tail=""),
    untyped("k2_horizon", LENIENT),
    *good_turns("k2_horizon_typed", tail=""),
    untyped("k2_horizon_typed", LENIENT),
    horizon(
        "no type",
        WRITE["k2_horizon"]("f", {"s": "hi"}),
        error="is not a key, a type and a value",
        sglang=LENIENT,
    ),
    *good_turns("k2_horizon_json", tail=""),
    *good_turns("longcat"),
    untyped("longcat", LENIENT),
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
    xlam("one call", WRITE["xlam"]("f", {"s": "hi"}), calls=[f(s="hi")]),
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

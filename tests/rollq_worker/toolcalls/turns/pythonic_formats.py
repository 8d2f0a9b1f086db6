"""Turns in the formats that write calls as in Python."""

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import (
    LENIENT,
    LOST,
    REASONING,
    STRICT,
    TEXT,
    UNKNOWN,
    f,
    turns_of,
)

lfm2, pythonic = turns_of("lfm2"), turns_of("pythonic")


def block(inside: str) -> str:
    return f"<|tool_call_start|>{inside}<|tool_call_end|>"


LFM2_CALL = block('[f(s="hi")]')
LFM2_TURNS = [
    lfm2("one call", LFM2_CALL, calls=[f(s="hi")]),
    lfm2("words of JSON", block("[f(b=true, e=null)]"), calls=[f(b=True, e=None)]),
    lfm2("a list of objects", block('[{"name": "f", "arguments": {"n": 1}}]'), calls=[f(n=1)]),
    lfm2("a string over two lines", block("[f(s='a\nb')]"), calls=[f(s="a\nb")]),
    lfm2("an argument named as a keyword", block("[f(from=1)]"), calls=[Action("f", {"from": 1})]),
    lfm2(
        "an end token in a string",
        block("[f(s='<|tool_call_end|>')]"),
        calls=[f(s="<|tool_call_end|>")],
        sglang=LOST,
    ),
    lfm2(
        "an open call",
        LFM2_CALL.removesuffix("<|tool_call_end|>"),
        calls=[f(s="hi")],
        unclosed=True,
        sglang=TEXT,
    ),
    lfm2("half a call", LFM2_CALL[:-20], error="cut off", sglang=TEXT),
    lfm2("without a list", block("f(n=1)"), error="must begin with", sglang=LENIENT),
    lfm2("an expression", block("[f(n=1+1)]"), error="expected ','", sglang=LOST),
    lfm2("a quote in a string", block("[f(s='it's')]"), error="expected ','", sglang=LENIENT),
    lfm2("a leading zero", block("[f(n=07)]"), calls=[f(n=7)]),
    lfm2("an argument without a name", block("[f(1)]"), error="name=value", sglang=LENIENT),
    lfm2("an argument twice", block("[f(n=1, n=2)]"), error="twice", sglang=LOST),
    lfm2("escapes", block(r"[f(s='\x41\u0042\103\n\q')]"), calls=[f(s="ABC\n\\q")]),
    lfm2("half an escape", block(r"[f(s='\x4')]"), error="escape", sglang=LOST),
    lfm2("half a surrogate pair", block(r"[f(s='\U0000d800')]"), error="surrogate", sglang=LOST),
    lfm2("digits of another script", block("[f(n=\u0663)]"), error="expected a value", sglang=LOST),
    lfm2("a value in parentheses", block("[f(n=(1), l=[((2))])]"), calls=[f(n=1, l=[2])]),
    lfm2("a tuple", block("[f(l=(1,))]"), calls=[f(l=[1])]),
    lfm2("an empty list", block("[]"), error="empty", sglang=LOST),
]
LLAMA4_CALL = '[f(s="hi")]'
PYTHONIC_TURNS = [
    pythonic("one call", LLAMA4_CALL, calls=[f(s="hi")]),
    pythonic(
        "behind Llama 4's tokens", f"<|python_start|>{LLAMA4_CALL}<|python_end|>", calls=[f(s="hi")]
    ),
    pythonic(
        "behind reasoning",
        f"<think>hm</think>{LLAMA4_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
    pythonic(
        "a bracket behind",
        f"{LLAMA4_CALL} (or []g())]",
        calls=[f(s="hi")],
        content="(or []g())]",
        sglang=STRICT,
    ),
    pythonic(
        "on the line of other words",
        f"Well. {LLAMA4_CALL}",
        content=f"Well. {LLAMA4_CALL}",
        sglang=LENIENT,
    ),
    pythonic("an unknown tool", "[h()]", calls=[Action("h", {})], sglang=UNKNOWN),
    pythonic("half a call", LLAMA4_CALL[:-2], error="cut off", sglang=TEXT),
    pythonic("code", '[f(s=open("x"))]', error="expected a value", sglang=LOST),
]
TURNS = [*LFM2_TURNS, *PYTHONIC_TURNS]

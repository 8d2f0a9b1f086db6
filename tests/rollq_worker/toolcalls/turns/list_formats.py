"""Turns in the formats that write a turn's calls as one JSON list behind a tag."""

from tests.rollq_worker.toolcalls.turns.turn import (
    FRAMED,
    LOST,
    REASONING,
    STRICT,
    f,
    turns_of,
)

cohere = turns_of("cohere")
FRAMES = "the tokens around what a turn says are text for the user"


def action(inside: str) -> str:
    return f"<|START_ACTION|>[\n    {inside}\n]<|END_ACTION|>"


COHERE_CALL = action('{"tool_call_id": "0", "tool_name": "f", "parameters": {"s": "hi"}}')
COHERE_TURNS = [
    cohere("one call", COHERE_CALL, calls=[f(s="hi")]),
    cohere("without its list", COHERE_CALL.replace("[", "").replace("]", ""), calls=[f(s="hi")]),
    cohere(
        "a response", "<|START_RESPONSE|>Hello.<|END_RESPONSE|>", content="Hello.", sglang=FRAMES
    ),
    cohere("a text", "<|START_TEXT|>Hello.<|END_TEXT|>", content="Hello.", sglang=FRAMES),
    cohere("no name", action('{"parameters": {}}'), error="tool_name", sglang=LOST),
    cohere(
        "reasoning",
        f"<|START_THINKING|>hm<|END_THINKING|>{COHERE_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]

apertus = turns_of("apertus")


def listed(inside: str) -> str:
    return f"<|tools_prefix|>[{inside}]<|tools_suffix|>"


APERTUS_CALL = listed('{"f": {"s": "hi"}}')
APERTUS_TURNS = [
    apertus("one call", APERTUS_CALL, calls=[f(s="hi")]),
    apertus(
        "without the stop token",
        APERTUS_CALL.removesuffix("<|tools_suffix|>"),
        calls=[f(s="hi")],
        sglang="the token that ends the turn must be in its text",
    ),
    apertus(
        "OpenAI's form", listed('{"name": "f", "arguments": {}}'), error="only key", sglang=LOST
    ),
    apertus(
        "reasoning",
        f"<|inner_prefix|>hm<|inner_suffix|>{APERTUS_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]

granite = turns_of("granite3")
GRANITE_CALL = '<|tool_call|>[{"name": "f", "arguments": {"s": "hi"}}]'
GRANITE_TURNS = [
    granite(
        "a good and a bad list",
        f"{GRANITE_CALL}<|tool_call|>[",
        calls=[f(s="hi")],
        content="<|tool_call|>[",
        error="not valid JSON",
    ),
]

apriel = turns_of("apriel")
APRIEL_CALL = '<tool_calls>[{"name": "f", "arguments": {"s": "hi"}}]</tool_calls>'
THOUGHT = "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\n"
APRIEL_TURNS = [
    apriel(
        "reasoning and words",
        f"{THOUGHT}Hello.\n[END FINAL RESPONSE]",
        content="Hello.",
        reasoning="hm",
    ),
    apriel(
        "calls without a list", APRIEL_CALL.replace("}]", '}{"name": "g"}]'), error="not valid JSON"
    ),
]

m1 = turns_of("minimax_m1")
M1_CALL = '<tool_calls>\n{"name": "f", "arguments": {"s": "hi"}}\n</tool_calls>'
MINIMAX_M1_TURNS = [
    m1("a list", M1_CALL.replace("{", "[{", 1).replace("}}", "}}]"), calls=[f(s="hi")]),
    m1("half of the second call", M1_CALL.replace("}}\n", '}}\n{"name"\n'), error="not valid JSON"),
    m1(
        "words between calls",
        M1_CALL.replace("}}\n", '}}\nand\n{"name": "g"}\n'),
        error="text behind",
    ),
]


def gigachat3_call(inside: str) -> str:
    return f"<|message_sep|>\n\nfunction call<|role_sep|>\n{inside}"


OBJECT = '{"name": "f", "arguments": {"s": "hi"}}'
giga = turns_of("gigachat3")
GIGACHAT3_TURNS = [
    giga("one call", gigachat3_call(OBJECT), calls=[f(s="hi")]),
    giga(
        "two calls",
        gigachat3_call(OBJECT) * 2,
        calls=[f(s="hi"), f(s="hi")],
        sglang="one call a turn",
    ),
    giga("a message with its end", "Hello.<|message_sep|>\n\n", content="Hello.", sglang=FRAMED),
    giga("no arguments", gigachat3_call('{"name": "f"}'), calls=[f()], sglang=STRICT),
]
giga31 = turns_of("gigachat31")
GIGACHAT31_TURNS = [
    giga31("one call", f"<|function_call|>{OBJECT}", calls=[f(s="hi")]),
    giga31(
        "text behind",
        f"<|function_call|>{OBJECT} ok",
        calls=[f(s="hi")],
        content="ok",
        sglang=STRICT,
    ),
]
TURNS = [
    *COHERE_TURNS,
    *APERTUS_TURNS,
    *GRANITE_TURNS,
    *APRIEL_TURNS,
    *MINIMAX_M1_TURNS,
    *GIGACHAT3_TURNS,
    *GIGACHAT31_TURNS,
]

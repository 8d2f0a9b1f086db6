"""Turns in the formats that write a turn's calls as one JSON list behind a tag."""

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import (
    FRAMED,
    LENIENT,
    LOST,
    REASONING,
    STRICT,
    TAIL,
    TEXT,
    UNKNOWN,
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
    cohere("text behind", f"{COHERE_CALL} ok", calls=[f(s="hi")], content="ok", sglang=TAIL),
    cohere(
        "two blocks",
        COHERE_CALL * 2,
        calls=[f(s="hi"), f(s="hi")],
        sglang="only the first block is read",
    ),
    cohere(
        "a response", "<|START_RESPONSE|>Hello.<|END_RESPONSE|>", content="Hello.", sglang=FRAMES
    ),
    cohere("a text", "<|START_TEXT|>Hello.<|END_TEXT|>", content="Hello.", sglang=FRAMES),
    cohere("no parameters", action('{"tool_name": "f"}'), calls=[f()]),
    cohere("no name", action('{"parameters": {}}'), error="tool_name", sglang=LOST),
    cohere(
        "a plain name", action('{"name": "f", "parameters": {}}'), error="tool_name", sglang=LENIENT
    ),
    cohere(
        "an unknown tool",
        action('{"tool_name": "h", "parameters": {}}'),
        calls=[Action("h", {})],
        sglang=UNKNOWN,
    ),
    cohere(
        "an open call", COHERE_CALL.removesuffix("<|END_ACTION|>"), calls=[f(s="hi")], unclosed=True
    ),
    cohere("half a call", COHERE_CALL[:-30], error="cut off", sglang=LENIENT),
    cohere("bad JSON", action("{'tool_name': 'f'}"), error="not valid JSON", sglang=LOST),
    cohere("an empty list", action(""), error="empty", sglang=LOST),
    cohere(
        "words in the block",
        f"{COHERE_CALL[:-14]} so<|END_ACTION|>",
        error="text behind",
        sglang=LENIENT,
    ),
    cohere(
        "an end token in a string",
        action('{"tool_name": "f", "parameters": {"s": "<|END_ACTION|>"}}'),
        calls=[f(s="<|END_ACTION|>")],
        sglang="an end token in a string ends the block",
    ),
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
    apertus("text behind", f"{APERTUS_CALL} ok", calls=[f(s="hi")], content="ok"),
    apertus("an unknown tool", listed('{"h": {}}'), calls=[Action("h", {})], sglang=UNKNOWN),
    apertus(
        "without the stop token",
        APERTUS_CALL.removesuffix("<|tools_suffix|>"),
        calls=[f(s="hi")],
        sglang="the token that ends the turn must be in its text",
    ),
    apertus(
        "without its list",
        '<|tools_prefix|>{"f": {}}<|tools_suffix|>',
        calls=[f()],
        sglang="the list must be there",
    ),
    apertus("half a call", APERTUS_CALL[:-22], error="cut off", sglang=TEXT),
    apertus("two names", listed('{"f": {}, "g": {}}'), error="only key", sglang=LENIENT),
    apertus(
        "OpenAI's form", listed('{"name": "f", "arguments": {}}'), error="only key", sglang=LOST
    ),
    apertus(
        "arguments that are a list", listed('{"f": [1]}'), error="not a JSON object", sglang=LENIENT
    ),
    apertus(
        "words in the block",
        '<|tools_prefix|>[{"f": {}}] so<|tools_suffix|>',
        error="text behind",
        sglang=LENIENT,
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
    granite("white space", GRANITE_CALL.replace("[", "\n[\n"), calls=[f(s="hi")]),
    granite("half a call", GRANITE_CALL[:-4], error="cut off"),
    granite("bad JSON", "<|tool_call|>f(1)", error="not valid JSON"),
    granite(
        "a good and a bad list",
        f"{GRANITE_CALL}<|tool_call|>[",
        calls=[f(s="hi")],
        content="<|tool_call|>[",
        error="not valid JSON",
    ),
]

nemotron = turns_of("nemotron_v2")
NEMOTRON_CALL = '<TOOLCALL>[{"name": "f", "arguments": {"s": "hi"}}]</TOOLCALL>'
NEMOTRON_TURNS = [
    nemotron(
        "an open call", NEMOTRON_CALL.removesuffix("</TOOLCALL>"), calls=[f(s="hi")], unclosed=True
    ),
    nemotron(
        "arguments as a string",
        '<TOOLCALL>[{"name": "f", "arguments": "{\\"s\\": \\"hi\\"}"}]</TOOLCALL>',
        calls=[f(s="hi")],
    ),
    nemotron("half a call", NEMOTRON_CALL[:-20], error="cut off"),
    nemotron("no name", '<TOOLCALL>[{"arguments": {}}]</TOOLCALL>', error="no "),
]

apriel = turns_of("apriel")
APRIEL_CALL = '<tool_calls>[{"name": "f", "arguments": {"s": "hi"}}]</tool_calls>'
THOUGHT = "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\n"
APRIEL_TURNS = [
    apriel("with an id", APRIEL_CALL.replace("}]", ', "id": "call00000"}]'), calls=[f(s="hi")]),
    apriel(
        "reasoning and words",
        f"{THOUGHT}Hello.\n[END FINAL RESPONSE]",
        content="Hello.",
        reasoning="hm",
    ),
    apriel(
        "an open call", APRIEL_CALL.removesuffix("</tool_calls>"), calls=[f(s="hi")], unclosed=True
    ),
    apriel("half a call", APRIEL_CALL[:-20], error="cut off"),
    apriel(
        "calls without a list", APRIEL_CALL.replace("}]", '}{"name": "g"}]'), error="not valid JSON"
    ),
]

m1 = turns_of("minimax_m1")
M1_CALL = '<tool_calls>\n{"name": "f", "arguments": {"s": "hi"}}\n</tool_calls>'
MINIMAX_M1_TURNS = [
    m1("a list", M1_CALL.replace("{", "[{", 1).replace("}}", "}}]"), calls=[f(s="hi")]),
    m1("an open call", M1_CALL.removesuffix("</tool_calls>"), calls=[f(s="hi")], unclosed=True),
    m1("half of the second call", M1_CALL.replace("}}\n", '}}\n{"name"\n'), error="not valid JSON"),
    m1(
        "words between calls",
        M1_CALL.replace("}}\n", '}}\nand\n{"name": "g"}\n'),
        error="text behind",
    ),
    m1("no lines", "<tool_calls>\n</tool_calls>", error="not valid JSON"),
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
    giga("half a call", gigachat3_call(OBJECT[:-3]), error="cut off", sglang=TEXT),
    giga("no name", gigachat3_call('{"arguments": {}}'), error='no "name"', sglang=LOST),
    giga(
        "arguments that are a list",
        gigachat3_call('{"name": "f", "arguments": [1]}'),
        error="not a JSON object",
        sglang=LOST,
    ),
    giga("no arguments", gigachat3_call('{"name": "f"}'), calls=[f()], sglang=STRICT),
    giga(
        "an unknown tool",
        gigachat3_call('{"name": "h", "arguments": {}}'),
        calls=[Action("h", {})],
        sglang=UNKNOWN,
    ),
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
    giga31("half a call", f"<|function_call|>{OBJECT[:-3]}", error="cut off", sglang=TEXT),
]
TURNS = [
    *COHERE_TURNS,
    *APERTUS_TURNS,
    *GRANITE_TURNS,
    *NEMOTRON_TURNS,
    *APRIEL_TURNS,
    *MINIMAX_M1_TURNS,
    *GIGACHAT3_TURNS,
    *GIGACHAT31_TURNS,
]

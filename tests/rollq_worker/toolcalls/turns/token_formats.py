"""Turns in the formats that write calls between control tokens."""

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import (
    FRAMED,
    LENIENT,
    LOST,
    REASONING,
    TEXT,
    UNKNOWN,
    f,
    turns_of,
)

deepseek = turns_of("deepseek_v31")


def deepseek_call(arguments: str, name: str = "f") -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def deepseek_section(*calls: str) -> str:
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


DEEPSEEK_CALL = deepseek_call('{"s": "hi"}')
FENCE = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"s": "hi"}\n```<｜tool▁call▁end｜>'
ALL = "one bad call makes text of all of them"
DEEPSEEK_TURNS = [
    deepseek("one call", deepseek_section(DEEPSEEK_CALL), calls=[f(s="hi")]),
    deepseek(
        "V3's fence",
        deepseek_section(FENCE),
        calls=[f(s="hi")],
        sglang="V3.1's parser does not know it",
    ),
    deepseek("no section", DEEPSEEK_CALL, calls=[f(s="hi")], sglang=TEXT),
    deepseek(
        "a good and a bad call",
        deepseek_section(DEEPSEEK_CALL, deepseek_call("{s}")),
        calls=[f(s="hi")],
        content=deepseek_call("{s}"),
        error="not valid JSON",
        sglang=ALL,
    ),
    deepseek(
        "an open section",
        f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}",
        calls=[f(s="hi")],
        unclosed=True,
    ),
    deepseek(
        "an open section with text",
        f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL} Done.",
        calls=[f(s="hi")],
        content="Done.",
        error="not closed",
        sglang=LENIENT,
    ),
    deepseek("an empty section", deepseek_section(), error="no tool call", sglang=LOST),
    deepseek(
        "bad JSON", deepseek_section(deepseek_call("{'s': 1}")), error="not valid JSON", sglang=TEXT
    ),
    deepseek(
        "no name", deepseek_section(deepseek_call("{}", "")), error="no function name", sglang=LOST
    ),
    deepseek(
        "reasoning",
        f"hm</think>{deepseek_section(DEEPSEEK_CALL)}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]


kimi = turns_of("kimi_k2")


def kimi_call(arguments: str, id: str = "functions.f:0") -> str:
    return f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def kimi_section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


KIMI_CALL = kimi_call('{"s": "hi"}')
KIMI_TURNS = [
    kimi("one call", kimi_section(KIMI_CALL), calls=[f(s="hi")]),
    kimi("no prefix in the id", kimi_section(kimi_call("{}", "f:0")), calls=[f()]),
    kimi(
        "a bare number",
        kimi_section(kimi_call("{}", "0")),
        error="id of the tool call",
        sglang="guesses the tool",
    ),
]


harmony = turns_of("gpt_oss")
HARMONY_CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"s": "hi"}'
ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
HARMONY_TURNS = [
    harmony("one call", HARMONY_CALL, calls=[f(s="hi")]),
    harmony(
        "the recipient first",
        ' to=functions.f<|channel|>commentary json<|message|>{"s": "hi"}',
        calls=[f(s="hi")],
        sglang="the recipient must follow the channel",
    ),
    harmony("a reply", "<|channel|>final<|message|>Hello.", content="Hello.", sglang=FRAMED),
    harmony(
        "an unknown tool",
        HARMONY_CALL.replace(".f ", ".h "),
        calls=[Action("h", {"s": "hi"})],
        sglang=UNKNOWN,
    ),
    harmony("half a header", "<|channel|>comm", error="outside of any channel", sglang=FRAMED),
    harmony("no namespace", HARMONY_CALL.replace("functions.", ""), calls=[f(s="hi")]),
    harmony(
        "another namespace",
        HARMONY_CALL.replace("functions.", "tools."),
        error="no recipient 'tools.f'",
        sglang="any namespace will do",
    ),
    harmony(
        "a user's words",
        f"{ANALYSIS}<|channel|>final<|message|>a<|end|><|start|>user<|message|>b",
        content="a<|start|>user<|message|>b",
        error="another role",
        reasoning="hm",
        sglang=FRAMED,
    ),
]


gemma = turns_of("gemma4")


def gemma_call(arguments: str, name: str = "f") -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


QUOTE = '<|"|>'
GEMMA_CALL = gemma_call(f"s:{QUOTE}hi{QUOTE}")
GEMMA_TURNS = [
    gemma("one call", GEMMA_CALL, calls=[f(s="hi")]),
    gemma(
        "quoted keys",
        gemma_call(f"o:{{{QUOTE}a b{QUOTE}:1}}"),
        calls=[f(o={"a b": 1})],
        sglang="the quotes stay in the key",
    ),
    gemma("null", gemma_call("e:null"), calls=[f(e=None)], sglang="null is a string"),
    gemma("braces in a string", gemma_call(f"s:{QUOTE}}}{{,:{QUOTE}"), calls=[f(s="}{,:")]),
    gemma("JSON", gemma_call('"s":"hi"'), error="expected a value", sglang=LENIENT),
    gemma("half a call", GEMMA_CALL[:-14], error="cut off", sglang=TEXT),
    gemma("an open call", GEMMA_CALL.removesuffix("<tool_call|>"), error="not closed", sglang=TEXT),
    gemma(
        "no call: in front", "<|tool_call>f{}<tool_call|>", error="no function name", sglang=TEXT
    ),
    gemma("a key twice", gemma_call("n:1,n:2"), error="'n' twice", sglang=LENIENT),
    gemma("deep", gemma_call("l:" + "[" * 80 + "]" * 80), error="nested deeper", sglang=LENIENT),
    gemma(
        "reasoning",
        f"<|channel>thought\nhm\n<channel|>{GEMMA_CALL}",
        calls=[f(s="hi")],
        reasoning="hm",
        sglang=REASONING,
    ),
]

solar = turns_of("solar")


def solar_call(arguments: str, name: str = "f", id: str = "a1b2c3d4e5") -> str:
    return f"<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"  # noqa: E501


SOLAR_CALL = "<|tool_calls|>" + solar_call('{"s": "hi"}')
SOLAR_WORDS = "<|content|>Hello.<|end|>"
SOLAR_TURNS = [
    solar("words", SOLAR_WORDS, content="Hello."),
    solar("outside of a section", SOLAR_CALL.removeprefix("<|tool_calls|>"), calls=[f(s="hi")]),
    solar("no id", SOLAR_CALL.replace("a1b2c3d4e5", ""), error="head of the tool call"),
]
TURNS = [*DEEPSEEK_TURNS, *KIMI_TURNS, *HARMONY_TURNS, *GEMMA_TURNS, *SOLAR_TURNS]

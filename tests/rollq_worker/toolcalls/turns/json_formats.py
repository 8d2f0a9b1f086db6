"""Turns in the formats that write whole calls as JSON."""

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import (
    LENIENT,
    LOST,
    REASONING,
    TEXT,
    UNKNOWN,
    f,
    turns_of,
)

hermes = turns_of("hermes")


def json_block(inside: str) -> str:
    return f"<tool_call>\n{inside}\n</tool_call>"


HERMES_CALL = json_block('{"name": "f", "arguments": {"s": "hi"}}')
HERMES_TURNS = [
    hermes("one call", HERMES_CALL, calls=[f(s="hi")]),
    hermes(
        "no line breaks",
        HERMES_CALL.replace("\n", ""),
        calls=[f(s="hi")],
        sglang="qwen25 wants the line breaks",
    ),
    hermes("parameters", json_block('{"name": "f", "parameters": {"n": 1}}'), calls=[f(n=1)]),
    hermes(
        "arguments and parameters",
        json_block('{"name": "f", "arguments": {"n": 1}, "parameters": {"n": 2}}'),
        error="both arguments and parameters",
        sglang=LENIENT,
    ),
    hermes(
        "no end tag",
        HERMES_CALL.removesuffix("</tool_call>"),
        calls=[f(s="hi")],
        unclosed=True,
        sglang="qwen25 wants the end tag, hermes does not",
    ),
    hermes(
        "arguments as a string",
        json_block('{"name": "f", "arguments": "{\\"s\\": \\"hi\\"}"}'),
        calls=[f(s="hi")],
        sglang="the arguments stay a string",
    ),
]


llama = turns_of("llama3")
LLAMA_CALL = '{"name": "f", "parameters": {"s": "hi"}}'
LLAMA_TURNS = [
    llama("one call", LLAMA_CALL, calls=[f(s="hi")]),
    llama(
        "behind Llama 4's tokens",
        f"<|python_start|><|python_end|>{LLAMA_CALL}",
        calls=[f(s="hi")],
        sglang="Llama 4's tokens are not known",
    ),
    llama(
        "text before the tag",
        f"Well. <|python_tag|>{LLAMA_CALL}",
        calls=[f(s="hi")],
        content="Well.",
    ),
    llama("two calls with a comma", f"{LLAMA_CALL}, {LLAMA_CALL}", calls=[f(s="hi"), f(s="hi")]),
    llama(
        "a tag for each call",
        f"<|python_tag|>{LLAMA_CALL}; <|python_tag|>{LLAMA_CALL}<|python_tag|>{LLAMA_CALL}",
        calls=[f(s="hi"), f(s="hi"), f(s="hi")],
    ),
    llama("white space first", f"\n\n{LLAMA_CALL}", calls=[f(s="hi")], sglang=TEXT),
    llama("JSON behind text", f"See: {LLAMA_CALL}", content=f"See: {LLAMA_CALL}"),
    llama(
        "an unknown tool",
        '{"name": "h", "parameters": {}}',
        calls=[Action("h", {})],
        sglang=UNKNOWN,
    ),
    llama("half a call", '{"name": "f", "para', error="cut off", sglang=TEXT),
    llama(
        "as Python prints it",
        "{'name': 'f', 'parameters': {}}",
        error="not valid JSON",
        sglang=LENIENT,
    ),
    llama("no name", '{"parameters": {}}', error='no "name"', sglang=LOST),
    llama("text behind", f"{LLAMA_CALL} done", calls=[f(s="hi")], content="done"),
    llama("prose in braces", "{you}, hello.", content="{you}, hello."),
    llama(
        "a record with a name",
        '{"name": "Ann", "age": 3}',
        content='{"name": "Ann", "age": 3}',
        sglang=LOST,
    ),
    llama(
        "prose in braces before a call",
        f"{{x}} {LLAMA_CALL}",
        content=f"{{x}} {LLAMA_CALL}",
        sglang="JSON behind text is a call if the text begins with a brace",
    ),
    llama(
        "a broken second call",
        f'{LLAMA_CALL};{{"name": ',
        calls=[f(s="hi")],
        content='{"name":',
        error="JSON",
        sglang=TEXT,
    ),
]


mistral = turns_of("mistral")
ITEM = '{"name": "f", "arguments": {"s": "hi"}, "id": "abc123def"}'
SPACE = "wants a space behind [TOOL_CALLS]"
MISTRAL_TURNS = [
    mistral("a list with a space", f"[TOOL_CALLS] [{ITEM}]", calls=[f(s="hi")]),
    mistral("a list", f"[TOOL_CALLS][{ITEM}]", calls=[f(s="hi")], sglang=SPACE),
    mistral(
        "brackets in a string",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"s": "]}"}}]',
        calls=[f(s="]}")],
    ),
    mistral("half a call", '[TOOL_CALLS] [{"name": "f", "arg', error="cut off", sglang=LOST),
    mistral(
        "half the arguments", '[TOOL_CALLS]f[ARGS]{"s": "h', error="not valid JSON", sglang=LOST
    ),
    mistral(
        "reasoning",
        '[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{"n": 1}',
        calls=[f(n=1)],
        reasoning="hm",
        sglang=REASONING,
    ),
]
TURNS = [*HERMES_TURNS, *LLAMA_TURNS, *MISTRAL_TURNS]

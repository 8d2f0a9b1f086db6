"""Reading costs work in proportion to the length of a turn, whatever a policy repeats in it."""

import re
from typing import SupportsIndex

import pytest

from rollq_worker.toolcalls import PARSERS, pieces
from tests.rollq_worker.toolcalls.turns import TOOLS

CODER = ["<tool_call>", "<function=f>", "<tool_call><function=f>", "<tool_call><function=f><parameter=s>"]
SECTION, CALL = "<|tool_calls_section_begin|>", "<|tool_call_begin|>"
BEGIN, BEGUN, SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
M3 = "]<]minimax[>["
SOLAR = "<|tool_call:begin|>"
UNITS = {
    "hermes": ["<tool_call>", "<tool_call>\n", '<tool_call>{"a":', '<tool_call>["', '<tool_call>{"name": "f"} '],
    "qwen3_coder": [*CODER, "<tool_call><function=f><parameter=s>1</parameter>"],
    "seed": [unit.replace("<tool_call>", "<seed:tool_call>") for unit in CODER],
    "llama3": ["<|python_tag|>", "{", '{"name": "f"};'],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]{", '[TOOL_CALLS]["', "[THINK]"],
    "glm45": ["<tool_call>", "<tool_call>f<arg_key>", "<tool_call>f<arg_key>s</arg_key><arg_value>"],
    "deepseek_v31": [BEGIN, BEGUN, BEGIN + BEGUN, f"{BEGUN}f{SEP}", f"{BEGUN}f{SEP}{{"],
    "deepseek_v32": [
        "<｜DSML｜tool_calls>",
        '<｜DSML｜function_calls><｜DSML｜invoke name="f">',
        '<｜DSML｜invoke name="f">',
    ],
    "kimi_k2": [SECTION, CALL, SECTION + CALL, f"{CALL}f:0<|tool_call_argument_begin|>{{"],
    "minimax_m2": ["<minimax:tool_call>", '<minimax:tool_call><invoke name="f"><parameter name="s">'],
    "gpt_oss": ["<|start|>", "<|end|>", "<|message|>", "<|channel|>commentary to=functions.f<|message|>{<|call|>"],
    "cohere": ["<|START_ACTION|>", '<|START_ACTION|>[{"tool_name": "f"},', '<|START_ACTION|>["', "<|START_RESPONSE|>"],
    "granite3": ["<|tool_call|>", "<|tool_call|>[{", '<|tool_call|>[{"name": "f"}] ', '<|tool_call|>["'],
    "nemotron_v2": ["<TOOLCALL>", '<TOOLCALL>[{"name": "f"}', '<TOOLCALL>["'],
    "apertus": ["<|tools_prefix|>", '<|tools_prefix|>[{"f": {}}', '<|tools_prefix|>["', "<|inner_prefix|>"],
    "lfm2": [
        "<|tool_call_start|>",
        "<|tool_call_start|>[f(s='",
        "<|tool_call_start|>[f(l=[",
        "<|tool_call_start|>[f()]",
    ],
    "pythonic": ["<|python_start|>", "\n[f(", "\n[f(s='", "\n[f(l=[", "\n[f()]"],
    "functionary_v31": ["<function=f>", "<function=", '<function=f>["', "<function=f>{}</function>"],
    "functionary_v32": [">>>f\n{", ">>>f\n", ">>>f\n{}", '>>>f\n["', ">>>all\n", ">>>"],
    "solar": [SOLAR, f"<|tool_calls|>{SOLAR}", "<|tool_calls|>", f"{SOLAR}a<|tool_call:name|>f<|tool_call:args|>{{"],
    "gigachat3": ["<|message_sep|>\n\nfunction call<|role_sep|>\n{", "<|message_sep|>\n\n"],
    "gigachat31": ["<|function_call|>", '<|function_call|>{"name": "f"}', '<|function_call|>["'],
    "apriel": ["<tool_calls>", '<tool_calls>[{"name": "f"}', '<tool_calls>["', "Here are my reasoning steps:"],
    "minimax_m1": ["<tool_calls>", '<tool_calls>{"name": "f"}', '{"name": "f"}\n', '<tool_calls>{"name": "f"'],
    "hunyuan3": [
        "<tool_call:opensource>",
        "<tool_calls:opensource>",
        "<tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>",
    ],
    "kimi_k3": [
        "<|open|>tools<|sep|>",
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>',
        '<|open|>call tool="f"<|sep|><|open|>argument key="s" type="string"<|sep|>',
    ],
    "minicpm5": [
        '<function name="f">',
        '<function name="f"><param name="s">',
        '<function name="f"><param name="s"><![CDATA[',
    ],
    "minimax_m3": [f"{M3}<tool_call>", f'{M3}<tool_call>{M3}<invoke name="f">{M3}<s>', f"{M3}<tool_call>{M3}<a>"],
    "muse": ["<|start|>", " to=f<|message|>", '<atem:function_calls><atem:invoke name="f">', "<|eom|>"],
    "inkling": ["<|message_model|>", "f<|content_invoke_tool_json|>{", "<|content_thinking|>", "<|end_message|>"],
    "gemma4": ["<|tool_call>", "<|tool_call>call:f{", '<|tool_call>call:f{s:<|"|>', "<|tool_call>call:f{l:["],
}
ENDS = ["", "</tool_call>", "</parameter>", "</arg_key>", "</arg_value>", '"', '<|"|>', "<|message|>"]


class Text(str):
    """Text that counts which of its characters are looked at, as far as its methods tell."""

    looked = 0

    def find(self, sub: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None, /) -> int:
        found = super().find(sub, start, end)
        Text.looked += (found if found >= 0 else len(self)) - (start.__index__() if start else 0)
        return found

    def rfind(self, sub: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None, /) -> int:
        found = super().rfind(sub, start, end)
        Text.looked += (end.__index__() if end else len(self)) - max(0, found)
        return found

    def count(self, sub: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None, /) -> int:
        Text.looked += (end.__index__() if end else len(self)) - (start.__index__() if start else 0)
        return super().count(sub, start, end)

    def rstrip(self, chars: str | None = None, /) -> "Text":
        Text.looked += len(self)
        return Text(super().rstrip(chars))

    def __contains__(self, sub: object) -> bool:
        Text.looked += len(self)
        return super().__contains__(sub)  # type: ignore[arg-type]

    def __getitem__(self, at: SupportsIndex | slice) -> "Text":
        part = Text(super().__getitem__(at))
        Text.looked += len(part)
        return part


class Searched:
    """A pattern that counts likewise."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def search(self, text: str, at: int) -> re.Match[str] | None:
        found = self.pattern.search(text, at)
        Text.looked += (found.end() if found else len(text)) - at
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for tags count what they look at."""
    real = pieces._any_of
    monkeypatch.setattr(pieces, "_any_of", lambda tags: Searched(real(tags)))


def work(format: str, text: str) -> int:
    Text.looked = 0
    PARSERS[format](Text(text), False, TOOLS)
    return Text.looked


def test_every_format_has_something_to_repeat():
    assert set(UNITS) == set(PARSERS)


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(("format", "unit"), [(format, unit) for format, units in UNITS.items() for unit in units])
def test_twice_the_text_is_twice_the_work(format: str, unit: str):
    times = 4_000 // len(unit)
    for end in ENDS:
        once, twice = work(format, unit * times + end), work(format, unit * (2 * times) + end)
        assert twice < 2.3 * once + 1000, f"{end!r} behind it: {once} characters, then {twice}"


@pytest.mark.parametrize("format", sorted(set(PARSERS) - {"llama3"}))  # whose broken call ends the turn
def test_the_first_of_many_errors_are_reported_one_by_one(format: str):
    unit = UNITS[format][0]
    read = PARSERS[format](unit * 500, False, TOOLS)
    assert read.content == unit * 500
    assert len(read.errors) == len(read.error_spans) == pieces.MAX_ERRORS + 1
    assert read.errors[-1] == f"There are {500 - pieces.MAX_ERRORS} more errors in the turn."
    assert read.error_spans[-1] == (len(unit) * pieces.MAX_ERRORS, len(unit) * 500)


def test_a_call_behind_thousands_of_broken_ones_is_read():
    read = PARSERS["hermes"]('<tool_call>{"name": "g"' * 3000 + '<tool_call>{"name": "f"}</tool_call>')
    assert [call.name for call in read.calls] == ["f"] and len(read.errors) == pieces.MAX_ERRORS + 1

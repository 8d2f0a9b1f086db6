"""Formats that write calls in markup: a block, its functions, and their parameters, each between
tags.

    <tool_call>                                     <minimax:tool_call>
    <function=f>                                    <invoke name="f">
    <parameter=a>                                   <parameter name="a">1</parameter>
    1                                               </invoke>
    </parameter>                                    </minimax:tool_call>
    </function>
    </tool_call>

The first is Qwen3-Coder's, also of Qwen3.5, Nemotron 3 and, with tags of its own, Seed-OSS; the
second MiniMax M2's, also of dots and, with tags of its own, Step 3. DeepSeek-V3.2's is like it,
with `<｜DSML｜` in every tag (V4.1 writes a space behind it), and says of each value whether it is
text or JSON, as Kimi K3's does. In the others a value's type is what the tool's schema says.
MiMo-V2 writes Qwen3-Coder's tags without line breaks around a value. MiniCPM5's functions stand
without a block.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import NotJson, skip, strict_json
from rollq_worker.toolcalls.pieces import (
    THINK,
    BrokenCall,
    Open,
    Piece,
    Reader,
    block_reader,
    broken,
    call_block,
    first,
    unclosed,
)
from rollq_worker.toolcalls.schema_types import Parameters, parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """The tags and rules of one format."""

    blocks: tuple[tuple[str, str], ...]
    """Tags around functions. If there are none, each function stands by itself."""
    function: tuple[str, str]
    """The beginning of a function's tag, and its end tag."""
    parameter: tuple[str, str]
    """The beginning of a parameter's tag, and its end tag."""
    name: re.Pattern[str]
    """The rest of a tag. Groups: the name; in formats that mark text, "true", "True" (as Python
    prints it) or "string" for text, another word for JSON.
    """
    form: str
    """The right way to write a call, told to the policy."""
    line: bool = False
    """True if a line break on either side of a value belongs to the markup."""
    marks_text: bool = False
    """True if each parameter's tag must mark its value as text or JSON."""
    cdata: bool = False
    """True if a value may stand in a CDATA section, which makes it text."""
    may_end_open: bool = False
    """True if a turn may end without the end tag of its last block. SGLang's parser takes such a
    call.
    """
    frames: tuple[str, ...] = ()
    """Control tokens around the content of a turn."""
    think: tuple[str, str] = THINK

    def reader(self) -> Reader:
        openers: dict[str, Open] = {}
        for open_tag, close_tag in self.blocks:
            read_calls = partial(self._calls, close_tag)
            openers[open_tag] = call_block((open_tag, close_tag), read_calls)
        if self.blocks:
            openers[self.function[0]] = self._without_block
        else:
            openers[self.function[0]] = call_block(self.function, self._one_call)
        return block_reader(openers, self.think, self.frames)

    def _without_block(self, text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
        begin, end = self.blocks[0]
        error = f"The function call does not stand between {begin} and {end}. {self.form}"
        return [broken(text, start, start + 1, (begin, self.function[1]), error)]

    def _one_call(self, text: str, at: int, tools: Sequence[Json]) -> tuple[Sequence[Action], int]:
        call, end = self._call(text, at, tools)
        return [call], end

    def _calls(
        self, close: str, text: str, at: int, tools: Sequence[Json]
    ) -> tuple[Sequence[Action], int]:
        """Reads the calls of a block that ends with `close`."""
        calls: list[Action] = []
        at = skip(text, at)
        while text.startswith(self.function[0], at):
            call, end = self._call(text, at + len(self.function[0]), tools)
            calls.append(call)
            at = skip(text, end)
        if not calls:
            raise BrokenCall(f"The tool call holds no function. {self.form}", at)
        if text.startswith(close, at):
            return calls, at + len(close)
        if at < len(text):
            raise BrokenCall(f"The tool call holds more than functions. {self.form}", at)
        if not self.may_end_open:
            raise BrokenCall("The tool call was not closed with its end tag.", at)
        return unclosed(calls), at

    def _call(self, text: str, at: int, tools: Sequence[Json]) -> tuple[Action, int]:
        """Reads the call whose name stands at `at`. Returns it and its end. Raises BrokenCall."""
        name = self.name.match(text, at)
        if name is None:
            raise BrokenCall(f"The tool call has no function name. {self.form}", at)
        arguments, at = self._arguments(text, skip(text, name.end()), name[1], tools)
        close = self.function[1]
        if text.startswith(close, at):
            return Action(name[1], arguments), at + len(close)
        this = f"The call of {name[1][:80]!r}"
        if at == len(text):
            raise BrokenCall(f"{this} is cut off: it was not closed with {close}.", at)
        raise BrokenCall(f"{this} holds more than parameters. {self.form}", at)

    def _arguments(
        self, text: str, at: int, name: str, tools: Sequence[Json]
    ) -> tuple[dict[str, Json], int]:
        """Reads the arguments of the call of `name`. Returns them and their end."""
        schema = parameters(tools, name)
        arguments: dict[str, Json] = {}
        tag = self.parameter[0]
        while text.startswith(tag, at):
            inside = at + len(tag)
            key = self.name.match(text, inside)
            if key is None:
                problem = f"A parameter of the call of {name[:80]!r} has no name. {self.form}"
                raise BrokenCall(problem, inside)
            value, end = self._argument(text, key, schema, name)
            if key[1] in arguments:
                raise BrokenCall(f"The tool call names the parameter {key[1][:80]!r} twice.", end)
            arguments[key[1]] = value
            at = skip(text, end)
        return arguments, at

    def _argument(
        self, text: str, key: re.Match[str], schema: Parameters, name: str
    ) -> tuple[Json, int]:
        """Reads the value behind the tag `key`. Returns it and its end. Raises BrokenCall."""
        this = f"The parameter {key[1][:80]!r} of the call of {name[:80]!r}"
        at = key.end()
        if self.marks_text and key[2] is None:
            raise BrokenCall(f"{this} does not say whether it is text. {self.form}", at)
        is_cdata = self.cdata and text.startswith("<![CDATA[", at)
        value, end = self._cdata(text, at) if is_cdata else self._between_tags(text, at)
        if value is None:
            raise BrokenCall(f"{this} was not closed with {self.parameter[1]}.", end)
        if is_cdata:
            return value, end
        typed, problem = _typed(value, key, schema, this)
        if problem:
            raise BrokenCall(problem, end)
        return typed, end

    def _cdata(self, text: str, at: int) -> tuple[str | None, int]:
        """The text of the CDATA section at `at`, None without an end, and the end of its tag."""
        begin = "<![CDATA["
        inside = at + len(begin)
        end = first(text, inside, "]]>" + self.parameter[1], begin)
        if end is None or end[0] == begin:
            return None, at
        return text[inside : end.start()], end.end()

    def _between_tags(self, text: str, at: int) -> tuple[str | None, int]:
        """The text of the value at `at`, None without an end tag, and where that tag ends."""
        tag, close = self.parameter
        end = first(text, at, close, tag, self.function[1])
        if end is None or end[0] != close:
            return None, at
        value = text[at : end.start()]
        if self.line:
            value = value.removeprefix("\n").removesuffix("\n")
        return value, end.end()


def _typed(text: str, tag: re.Match[str], schema: Parameters, this: str) -> tuple[Json, str]:
    """The value of `text` by the mark in its tag, else by the schema; and what is wrong or ""."""
    mark = tag[2] if tag.re.groups > 1 else None
    if mark is None:
        value, error = schema.read(tag[1], text)
        return value, error and f"{this} {error}"
    if mark in ("true", "True", "string"):
        return text, ""
    try:
        value, problem, end = strict_json(text)
    except NotJson:
        return None, f"{this} is not valid JSON, though its tag says that it is not a string."
    if not problem and skip(text, end) != len(text):
        problem = f"{this} has text behind its JSON."
    return value, problem


_BARE = re.compile(r"([^\s<>](?:[^<>\n]*[^\s<>])?)>")
QUOTED = re.compile(r'([^"<\n]+)">')
_CODER = Markup(
    blocks=(("<tool_call>", "</tool_call>"),),
    function=("<function=", "</function>"),
    parameter=("<parameter=", "</parameter>"),
    name=_BARE,
    form="Write <function=name><parameter=key>value</parameter></function> between the tool_call "
    "tags.",
    line=True,
    may_end_open=True,
)
_INVOKE = Markup(
    blocks=(("<minimax:tool_call>", "</minimax:tool_call>"),),
    function=('<invoke name="', "</invoke>"),
    parameter=('<parameter name="', "</parameter>"),
    name=QUOTED,
    form='Write <invoke name="name"><parameter name="key">value</parameter></invoke> between '
    "the tool_call tags.",
)


def _dsml(space: str, *blocks: str) -> Reader:
    """The reader of DeepSeek's markup. `space` follows the mark in each tag."""
    mark = f"｜DSML｜{space}"
    return Markup(
        blocks=tuple((f"<{mark}{name}>", f"</{mark}{name}>") for name in blocks),
        function=(f'<{mark}invoke name="', f"</{mark}invoke>"),
        parameter=(f'<{mark}parameter name="', f"</{mark}parameter>"),
        name=re.compile(r'([^"<\n]+)"(?: string="(true|false|True|False)")?>'),
        marks_text=True,
        form="Write an invoke tag with the name; in it, for each argument, a parameter tag with "
        'string="true" or "false".',
    ).reader()


READERS = {
    "qwen3_coder": _CODER.reader(),
    "seed": replace(
        _CODER,
        blocks=(("<seed:tool_call>", "</seed:tool_call>"),),
        line=False,
        think=("<seed:think>", "</seed:think>"),
    ).reader(),
    "mimo_v2": replace(_CODER, line=False).reader(),
    "minimax_m2": _INVOKE.reader(),
    "dots": replace(_INVOKE, blocks=(("<dots_function_call>", "</dots_function_call>"),)).reader(),
    "step3": Markup(
        blocks=(("<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>"),),
        function=('<steptml:invoke name="', "</steptml:invoke>"),
        parameter=('<steptml:parameter name="', "</steptml:parameter>"),
        name=QUOTED,
        form='Write <steptml:invoke name="name"><steptml:parameter name="key">value'
        "</steptml:parameter></steptml:invoke> between the tool_call tokens.",
        frames=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    ).reader(),
    "deepseek_v32": _dsml("", "function_calls", "tool_calls"),
    "deepseek_v41": _dsml(" ", "calls"),
    "kimi_k3": Markup(
        blocks=(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),),
        function=('<|open|>call tool="', "<|close|>call<|sep|>"),
        parameter=('<|open|>argument key="', "<|close|>argument<|sep|>"),
        name=re.compile(r'([^"<\n]+)"(?: index="\d+")?(?: type="(\w+)")?<\|sep\|>'),
        form="Write a call with its tool and index in the tools; in it, for each argument, its "
        "key, type and value.",
        may_end_open=True,
        frames=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ).reader(),
    "minicpm5": Markup(
        blocks=(),
        function=('<function name="', "</function>"),
        parameter=('<param name="', "</param>"),
        name=QUOTED,
        form='Write <function name="name"><param name="key">value</param></function>.',
        cdata=True,
    ).reader(),
}

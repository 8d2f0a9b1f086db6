"""Formats that write calls in markup: a block, its functions, and their parameters, each between tags.

    <tool_call>                                     <minimax:tool_call>
    <function=f>                                    <invoke name="f">
    <parameter=a>                                   <parameter name="a">1</parameter>
    1                                               </invoke>
    </parameter>                                    </minimax:tool_call>
    </function>
    </tool_call>

The first is Qwen3-Coder's, also of Qwen3.5, Nemotron 3 and, with tags of its own, Seed-OSS; the second MiniMax M2's.
DeepSeek-V3.2's is like it, with `<｜DSML｜` in every tag, and says of each value whether it is text or JSON. In the
others a value's type is what the tool's schema says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.arguments import NotJson, parameters, strict_json, typed
from rollq_worker.toolcalls.pieces import THINK, Kind, Piece, assemble, broken, cut, first, skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """The tags of one format."""

    blocks: tuple[tuple[str, str], ...]
    """What may stand around functions."""
    function: tuple[str, str]
    """How a function's tag begins, and its end tag."""
    parameter: tuple[str, str]
    """Likewise of a parameter."""
    name: re.Pattern[str]
    """What stands between the beginning of a tag and the text behind it, with the name; and, where the format tells
    of it, in a second group whether the value is text ("true") or JSON."""
    form: str
    """How a call is to be written, for the policy."""
    line: bool = False
    """A line break on either side of a value is markup."""
    think: tuple[str, str] = THINK

    def read(self, text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
        """A turn's calls in this format, and its reasoning."""
        return assemble(text, markup_pieces(self, text, thinking, tools))


_BARE = re.compile(r"([^\s<>]+)>")
_QUOTED = re.compile(r'([^"<>\s]+)">')
CODER = Markup(
    blocks=(("<tool_call>", "</tool_call>"),),
    function=("<function=", "</function>"),
    parameter=("<parameter=", "</parameter>"),
    name=_BARE,
    form="Write <function=name><parameter=key>value</parameter></function> between the tool_call tags.",
    line=True,
)
SEED = replace(CODER, blocks=(("<seed:tool_call>", "</seed:tool_call>"),), think=("<seed:think>", "</seed:think>"))
MINIMAX = Markup(
    blocks=(("<minimax:tool_call>", "</minimax:tool_call>"),),
    function=('<invoke name="', "</invoke>"),
    parameter=('<parameter name="', "</parameter>"),
    name=_QUOTED,
    form='Write <invoke name="name"><parameter name="key">value</parameter></invoke> between the tool_call tags.',
)
_DSML = "｜DSML｜"
DEEPSEEK = Markup(
    blocks=tuple((f"<{_DSML}{name}>", f"</{_DSML}{name}>") for name in ("function_calls", "tool_calls")),
    function=(f'<{_DSML}invoke name="', f"</{_DSML}invoke>"),
    parameter=(f'<{_DSML}parameter name="', f"</{_DSML}parameter>"),
    name=re.compile(r'([^"<>\s]+)"(?: string="(true|false)")?>'),
    form='Write an invoke tag with the name; in it, for each argument, a parameter tag with string="true" or "false".',
)


def markup_pieces(markup: Markup, text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> list[Piece]:
    """The turn cut into pieces that tile it."""

    def block(open_: str, close: str, text: str, start: int) -> Sequence[Piece]:
        calls, error, end = _calls(markup, text, start + len(open_), close, tools)
        if error:
            return [broken(text, start, end, error, close, open_)]
        return [Piece(Kind.CALL, start, end, calls=tuple(calls))]

    def bare(text: str, start: int) -> Sequence[Piece]:
        open_ = markup.blocks[0][0]
        error = f"The function call does not stand between {open_[1:-1]} tags. {markup.form}"
        return [broken(text, start, start + 1, error, markup.function[1], open_)]

    openers = {open_: partial(block, open_, close) for open_, close in markup.blocks}
    return cut(text, {**openers, markup.function[0]: bare}, thinking, markup.think)


def _calls(markup: Markup, text: str, at: int, close: str, tools: Sequence[Json]) -> tuple[list[Action], str, int]:
    """The calls of a block, what is wrong ("": nothing), and where reading ended."""
    calls: list[Action] = []
    at = skip(text, at)
    while text.startswith(markup.function[0], at):
        name = markup.name.match(text, at + len(markup.function[0]))
        if name is None:
            return [], f"The tool call has no function name. {markup.form}", at + len(markup.function[0])
        arguments, error, at = _arguments(markup, text, name.end(), name[1], tools)
        if error:
            return [], error, at
        calls.append(Action(name[1], arguments))
        at = skip(text, at)
    if not calls:
        return [], f"The tool call holds no function. {markup.form}", at
    if not text.startswith(close, at):
        tail = "was not closed with its end tag." if at == len(text) else f"holds more than functions. {markup.form}"
        return [], f"The tool call {tail}", at
    return calls, "", at + len(close)


def _arguments(
    markup: Markup, text: str, at: int, name: str, tools: Sequence[Json]
) -> tuple[dict[str, Json], str, int]:
    """The arguments of the call of `name`, what is wrong ("": nothing), and where reading ended."""
    schemas, arguments = parameters(tools, name), dict[str, Json]()
    (tag, untag), unfunction = markup.parameter, markup.function[1]
    at = skip(text, at)
    while text.startswith(tag, at):
        key = markup.name.match(text, at + len(tag))
        if key is None:
            return {}, f"A parameter of the call of {name!r} has no name. {markup.form}", at + len(tag)
        at, found = key.end(), first(text, key.end(), untag, tag, unfunction)
        if found is None or found[0] != untag:
            return {}, f"The parameter {key[1]!r} of the call of {name!r} was not closed with {untag}.", at
        value, end = text[at : found.start()], found.start()
        if key[1] in arguments:
            return {}, f"The tool call names the parameter {key[1]!r} twice.", end
        if markup.line:
            value = value.removeprefix("\n").removesuffix("\n")
        arguments[key[1]], error = _value(value, key, schemas.get(key[1]))
        if error:
            return {}, f"The parameter {key[1]!r} of the call of {name!r} {error}", end
        at = skip(text, end + len(untag))
    if text.startswith(unfunction, at):
        return arguments, "", at + len(unfunction)
    if at == len(text):
        return {}, f"The call of {name!r} is cut off: it was not closed with {unfunction}.", at
    return {}, f"The call of {name!r} holds more than parameters. {markup.form}", at


def _value(text: str, tag: re.Match[str], schema: Json) -> tuple[Json, str]:
    """The value of a parameter, and what is wrong with it."""
    said = tag[2] if tag.re.groups > 1 else None
    if said is None:
        return typed(text, schema), ""
    if said == "true":
        return text, ""
    try:
        value, problems, end = strict_json(text)
    except (RecursionError, NotJson):
        return None, 'is not valid JSON, though it says string="false".'
    if skip(text, end) != len(text):
        return None, "has text behind its JSON."
    return value, problems[0] if problems else ""

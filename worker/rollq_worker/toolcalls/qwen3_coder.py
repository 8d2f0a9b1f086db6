"""Qwen3-Coder's format, also of Qwen3.5, Nemotron 3 and, with tags of its own, Seed-OSS: parameters in tags.

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

One line break on either side of a value is markup. The type of a value is what the tool's schema says.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.turn import THINK, Kind, Piece, assemble, broken, cut, skip
from rollq_worker.toolcalls.values import parameters, typed

SEED_THINK = ("<seed:think>", "</seed:think>")
_FUNCTION, _UNFUNCTION, _PARAMETER, _UNPARAMETER = "<function=", "</function>", "<parameter=", "</parameter>"
_FORM = "Write <function=name><parameter=key>value</parameter></function> between the tool_call tags."


def read_qwen3_coder(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read `<tool_call><function=...>...</function></tool_call>` and `<think>...</think>`."""
    return assemble(text, coder_pieces(text, thinking, tools))


def read_seed(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """The same in Seed-OSS' tags, `<seed:tool_call>` and `<seed:think>`."""
    return assemble(text, coder_pieces(text, thinking, tools, ("<seed:tool_call>", "</seed:tool_call>"), SEED_THINK))


def coder_pieces(
    text: str,
    thinking: bool | None = False,
    tools: Sequence[Json] = (),
    tags: tuple[str, str] = ("<tool_call>", "</tool_call>"),
    think: tuple[str, str] = THINK,
) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    open_, close = tags

    def block(text: str, start: int) -> Sequence[Piece]:
        calls, error, end = _calls(text, start + len(open_), close, tools)
        if error:
            return [broken(text, start, end, error, close, open_)]
        return [Piece(Kind.CALL, start, end, calls=tuple(calls))]

    def bare(text: str, start: int) -> Sequence[Piece]:
        error = f"The function call does not stand between {open_[1:-1]} tags. {_FORM}"
        return [broken(text, start, start + 1, error, _UNFUNCTION, open_)]

    return cut(text, {open_: block, _FUNCTION: bare}, thinking, think)


def _calls(text: str, at: int, close: str, tools: Sequence[Json]) -> tuple[list[Action], str, int]:
    """The calls of a block, what is wrong ("": nothing), and where reading ended."""
    calls: list[Action] = []
    at = skip(text, at)
    while text.startswith(_FUNCTION, at):
        inside = at + len(_FUNCTION)
        name, _, _ = text[inside:].partition(">")
        at = inside + len(name) + 1
        if at > len(text) or not _is_name(name):
            return [], f"The tool call has no function name. {_FORM}", min(at, len(text))
        arguments, error, at = _arguments(text, at, name, tools)
        if error:
            return [], error, at
        calls.append(Action(name, arguments))
        at = skip(text, at)
    if not calls:
        return [], f"The tool call holds no function. {_FORM}", at
    if not text.startswith(close, at):
        tail = "was not closed with its end tag." if at == len(text) else f"holds more than functions. {_FORM}"
        return [], f"The tool call {tail}", at
    return calls, "", at + len(close)


def _arguments(text: str, at: int, name: str, tools: Sequence[Json]) -> tuple[dict[str, Json], str, int]:
    schemas, arguments = parameters(tools, name), dict[str, Json]()
    at = skip(text, at)
    while text.startswith(_PARAMETER, at):
        inside = at + len(_PARAMETER)
        key, _, _ = text[inside:].partition(">")
        at = inside + len(key) + 1
        if at > len(text) or not _is_name(key):
            return {}, f"A parameter of the call of {name!r} has no name. {_FORM}", min(at, len(text))
        end = text.find(_UNPARAMETER, at)
        value = text[at:end] if end >= 0 else text[at:]
        if end < 0 or _PARAMETER in value or _UNFUNCTION in value:
            return {}, f"The parameter {key!r} of the call of {name!r} was not closed with </parameter>.", at
        if key in arguments:
            return {}, f"The tool call names the parameter {key!r} twice.", end
        arguments[key] = typed(value.removeprefix("\n").removesuffix("\n"), schemas.get(key))
        at = skip(text, end + len(_UNPARAMETER))
    if text.startswith(_UNFUNCTION, at):
        return arguments, "", at + len(_UNFUNCTION)
    if at == len(text):
        return {}, f"The call of {name!r} is cut off: it was not closed with </function>.", at
    return {}, f"The call of {name!r} holds more than parameters. {_FORM}", at


def _is_name(name: str) -> bool:
    return bool(name) and not any(char.isspace() or char in "<>" for char in name)

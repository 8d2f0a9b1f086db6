"""GLM's format, of 4.5 to 4.7: a name, then keys and values in tags; white space between tags is free.

    <tool_call>f
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

A value is taken as it stands; its type is what the tool's schema says.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action
from rollq_worker.strict_json import skip
from rollq_worker.toolcalls.pieces import Kind, Piece, block_reader, broken, first
from rollq_worker.toolcalls.schema_types import parameters

_TAGS = ("<tool_call>", "</tool_call>")
_KEY, _UNKEY, _VALUE, _UNVALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_FORM = "Write the name, then <arg_key>key</arg_key><arg_value>value</arg_value>, between the tool_call tags."


def _block(text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
    call, error, end = _call(text, start + len(_TAGS[0]), tools)
    if call is None:
        return [broken(text, start, end, _TAGS, error)]
    return [Piece(Kind.CALL, start, end, calls=(call,))]


def _call(text: str, at: int, tools: Sequence[Json]) -> tuple[Action | None, str, int]:
    """The call, or what is wrong with it; and where reading ended."""
    end = text.find("<", at)
    name = text[at : end if end >= 0 else len(text)].strip()
    if end < 0:
        return None, f"The tool call is cut off: it has no end tag. {_FORM}", len(text)
    if not name or any(char.isspace() for char in name):
        return None, f"The tool call has no function name. {_FORM}", end
    known, arguments, at = parameters(tools, name), dict[str, Json](), end
    while text.startswith(_KEY, at):
        inside = at + len(_KEY)
        unkey = first(text, inside, _UNKEY, _KEY, _VALUE)
        if unkey is not None and unkey[0] == _UNKEY:
            at = skip(text, unkey.end())
        unvalue = first(text, at + len(_VALUE), _UNVALUE, _KEY, _VALUE) if text.startswith(_VALUE, at) else None
        if unkey is None or unvalue is None or not (key := text[inside : unkey.start()]).strip():
            return None, f"An argument of the call of {name!r} is not a key and a value. {_FORM}", inside
        if unvalue[0] != _UNVALUE:
            return None, f"The argument {key!r} of the call of {name!r} was not closed with </arg_value>.", inside
        if key in arguments:
            return None, f"The tool call names the argument {key!r} twice.", unvalue.start()
        arguments[key], error = known.read(key, text[at + len(_VALUE) : unvalue.start()])
        if error:
            return None, f"The argument {key!r} of the call of {name!r} {error}", unvalue.start()
        at = skip(text, unvalue.end())
    if text.startswith(_TAGS[1], at):
        return Action(name, arguments), "", at + len(_TAGS[1])
    if at == len(text):
        return None, "The tool call was not closed with its end tag.", at
    return None, f"The call of {name!r} holds more than arguments. {_FORM}", at


GLM45 = block_reader({_TAGS[0]: _block})

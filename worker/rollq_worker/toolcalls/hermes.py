"""Hermes' format, also of Qwen2.5, Qwen3 and Granite 4: JSON in tags.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

White space is free; a list in a block is several calls.
"""

from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.arguments import MAX_DEPTH, NotJson, strict_json
from rollq_worker.toolcalls.pieces import Kind, Piece, assemble, broken, cut, skip

FORM = 'Write {"name": ..., "arguments": {...}} between the tool_call tags.'
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` and `<think>...</think>`; spaces are free.

    `thinking`: the assistant header has opened the reasoning block already.
    """
    return assemble(text, hermes_pieces(text, thinking))


def hermes_pieces(text: str, thinking: bool | None = False) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    last = text.rfind(_CLOSE)
    return cut(text, {_OPEN: lambda text, start: [_call(text, start, last)]}, thinking)


def _call(text: str, start: int, last: int) -> Piece:
    """The call block that opens at `start`. JSON is read first: a closing tag inside one of its strings is text.

    `last`: where the turn's last end tag is.
    """
    inside = start + len(_OPEN)
    try:
        value, problems, end = strict_json(text, inside)
    except RecursionError:
        return _broken(text, start, inside, f"The tool call is nested deeper than {MAX_DEPTH} levels.")
    except NotJson as e:
        what = f"is not valid JSON: {e.msg} at character {e.pos - inside}."
        if last < inside:
            what = "is cut off: its JSON is incomplete or wrong and there is no end tag."
        return _broken(text, start, inside, f"The tool call {what} {FORM}")
    end = skip(text, end)
    if not text.startswith(_CLOSE, end):
        if end == len(text):
            return _broken(text, start, end, "The tool call was not closed with its end tag.")
        return _broken(text, start, end, f"There is text behind the JSON of the tool call. {FORM}")
    end += len(_CLOSE)
    if problems:
        return Piece(Kind.BROKEN, start, end, errors=(problems[0],))
    calls, errors = _actions(value)
    # A list with one broken call is broken as a whole, so that the text of that call is not lost.
    return Piece(Kind.BROKEN, start, end, errors=errors) if errors else Piece(Kind.CALL, start, end, calls=calls)


def _broken(text: str, start: int, after: int, error: str) -> Piece:
    return broken(text, start, after, error, _CLOSE, _OPEN)


def _actions(value: Json) -> tuple[tuple[Action, ...], tuple[str, ...]]:
    """The calls of one block: an object, or a list of objects."""
    read = [action(item) for item in (value if isinstance(value, list) else [value])]
    errors = tuple(item for item in read if isinstance(item, str))
    if not read:
        errors = (f"The tool call is an empty list. {FORM}",)
    return tuple(item for item in read if isinstance(item, Action)), errors


def action(value: Json, key: str = "arguments", other: str = "parameters", form: str = FORM) -> Action | str:
    """One call as a JSON object with its arguments under `key`, or what is wrong with it."""
    if not isinstance(value, dict):
        return f"The tool call is not a JSON object. {form}"
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return f'The tool call has no "name". {form}'
    if key not in value and other in value:
        return f'The tool call has "{other}" where "{key}" belongs. {form}'
    arguments = value.get(key, {})
    if isinstance(arguments, str):
        return _from_string(name, arguments, key)
    if not isinstance(arguments, dict):
        return f'The "{key}" of the call of {name!r} are not a JSON object.'
    return Action(name, arguments)


def _from_string(name: str, arguments: str, key: str) -> Action | str:
    """Arguments as a string, as OpenAI's API has them: taken when it holds a JSON object, under the same rules."""
    error = f'The "{key}" of the call of {name!r} are a string that holds no JSON object.'
    try:
        value, problems, end = strict_json(arguments)
    except (RecursionError, NotJson):
        return error
    if not isinstance(value, dict) or skip(arguments, end) != len(arguments):
        return error
    return problems[0] if problems else Action(name, value)

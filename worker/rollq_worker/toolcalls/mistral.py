"""Mistral's formats: a JSON list, or a name and its arguments for each call.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}]
    [TOOL_CALLS]f[ARGS]{"a": 1}

The second one may name the call's id, `[CALL_ID]abc123def`, in front of `[ARGS]`. Reasoning is `[THINK]...[/THINK]`.
"""

import re
from collections.abc import Sequence

from rollq.job import Json
from rollq_worker.protocols import Action, ReadTurn
from rollq_worker.toolcalls.arguments import MAX_DEPTH, NotJson, json_object, not_json, strict_json
from rollq_worker.toolcalls.hermes import action
from rollq_worker.toolcalls.pieces import Kind, Piece, assemble, cut

THINK = ("[THINK]", "[/THINK]")
_TAG = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*([^\s\[\]{}]*)\s*)?\[ARGS\]")
_FORM = 'Write [TOOL_CALLS][{"name": ..., "arguments": {...}}].'


def read_mistral(text: str, thinking: bool | None = False, tools: Sequence[Json] = ()) -> ReadTurn:
    """Read `[TOOL_CALLS][...]`, `[TOOL_CALLS]name[ARGS]{...}` and `[THINK]...[/THINK]`."""
    return assemble(text, mistral_pieces(text, thinking))


def mistral_pieces(text: str, thinking: bool | None = False) -> list[Piece]:
    """The turn cut into pieces that tile it."""
    return cut(text, {_TAG: _block}, thinking, THINK)


def _block(text: str, start: int) -> Sequence[Piece]:
    inside = start + len(_TAG)
    if match := _NAMED.match(text, inside):
        arguments, error, end = json_object(text, match.end(), match[1])
        if error:
            return [_rest(text, start, error)]
        return [Piece(Kind.CALL, start, end, calls=(Action(match[1], arguments),), ids=(match[2] or "",))]
    return [_list(text, start, inside)]


def _rest(text: str, start: int, error: str) -> Piece:
    """An unreadable block: to the next one, or to the end of the turn."""
    end = text.find(_TAG, start + 1)
    return Piece(Kind.BROKEN, start, end if end >= 0 else len(text), errors=(error,))


def _list(text: str, start: int, inside: int) -> Piece:
    try:
        value, problems, end = strict_json(text, inside)
    except RecursionError:
        return _rest(text, start, f"The tool call is nested deeper than {MAX_DEPTH} levels.")
    except NotJson as e:
        return _rest(text, start, f"The tool call is {not_json(text, inside, e)} {_FORM}")
    if problems:
        return _rest(text, start, problems[0])
    items = value if isinstance(value, list) else [value]
    read = [action(item, form=_FORM) for item in items]
    errors = tuple(item for item in read if isinstance(item, str))
    if errors or not read:
        return _rest(text, start, errors[0] if errors else f"The tool call is an empty list. {_FORM}")
    calls = tuple(item for item in read if isinstance(item, Action))
    ids = tuple(str(item.get("id", "")) if isinstance(item, dict) else "" for item in items)
    return Piece(Kind.CALL, start, end, calls=calls, ids=ids)

"""Calls written as JSON: complete calls as objects with a name and arguments, or arguments alone.

It does not know tags.
"""

from collections.abc import Mapping

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import NotJson, skip, strict_json
from rollq_worker.toolcalls.pieces import BrokenCall

ARGUMENT_KEYS = ("arguments", "parameters")
"""The keys under which the object of a call may hold its arguments."""


def call_id(item: Mapping[str, Json], key: str) -> str:
    """The id that the model gave a call, a text or a number; "" for none."""
    id = item.get(key)
    return str(id) if isinstance(id, str | int) else ""


class NotACall(ValueError):
    """A JSON value is not a call. The message is a sentence for the policy."""


def call_of(value: Json, form: str) -> Action:
    """Reads a call from a JSON object. Raises NotACall.

    Arguments stand under "arguments" or "parameters", because models are trained on both. null
    means no arguments.
    """
    if not isinstance(value, dict):
        raise NotACall(f"The tool call is not a JSON object. {form}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise NotACall(f'The tool call has no "name". {form}')
    used_keys = [key for key in ARGUMENT_KEYS if value.get(key) is not None]
    if len(used_keys) > 1:
        raise NotACall(f"The call of {name[:80]!r} has both {' and '.join(used_keys)}. {form}")
    if not used_keys:
        return Action(name, {})
    key = used_keys[0]
    arguments = value[key]
    if isinstance(arguments, str):
        arguments = _from_string(name, arguments, key)
    if not isinstance(arguments, dict):
        raise NotACall(f'The "{key}" of the call of {name[:80]!r} are not a JSON object.')
    return Action(name, arguments)


def _from_string(name: str, text: str, key: str) -> dict[str, Json]:
    """Reads arguments from a string that holds a JSON object, as in OpenAI's API."""
    error = f'The "{key}" of the call of {name[:80]!r} are a string that holds no JSON object.'
    try:
        value, problem, end = strict_json(text)
    except NotJson:
        raise NotACall(error) from None
    if value is None and not problem:
        value = {}
    if not isinstance(value, dict) or skip(text, end) != len(text):
        raise NotACall(error)
    if problem:
        raise NotACall(problem)
    return value


def read_arguments(text: str, at: int, name: str) -> tuple[dict[str, Json], int]:
    """Reads the arguments at `at` of a call of `name`, and returns them and their end. null means
    no arguments. Raises BrokenCall.
    """
    try:
        value, problem, end = strict_json(text, at)
    except NotJson as e:
        raise BrokenCall(f"The arguments of the call of {name[:80]!r} are {e}", at) from None
    if problem:
        raise BrokenCall(problem, end)
    if value is None:
        return {}, end
    if not isinstance(value, dict):
        raise BrokenCall(f"The arguments of the call of {name[:80]!r} are not a JSON object.", end)
    return value, end

"""Calls written as JSON: complete calls as objects with a name and arguments, or arguments alone.

It does not know tags.
"""

from collections.abc import Mapping

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import NotJson, skip, strict_json

ARGUMENT_KEYS = ("arguments", "parameters")
"""The keys under which the object of a call may hold its arguments."""


def call_id(item: Mapping[str, Json], key: str) -> str:
    """The id that the model gave a call, a text or a number; "" for none."""
    id = item.get(key)
    return str(id) if isinstance(id, str | int) else ""


def call_of(value: Json, form: str) -> Action | str:
    """Reads a call from a JSON object. Returns a sentence for the policy if it is none.

    Arguments stand under "arguments" or "parameters", because models are trained on both. null
    means no arguments.
    """
    if not isinstance(value, dict):
        return f"The tool call is not a JSON object. {form}"
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return f'The tool call has no "name". {form}'
    used_keys = [key for key in ARGUMENT_KEYS if value.get(key) is not None]
    if len(used_keys) > 1:
        return f"The call of {name!r} has both {' and '.join(used_keys)}. {form}"
    if not used_keys:
        return Action(name, {})
    key = used_keys[0]
    arguments = value[key]
    if isinstance(arguments, str):
        return _from_string(name, arguments, key)
    if not isinstance(arguments, dict):
        return f'The "{key}" of the call of {name!r} are not a JSON object.'
    return Action(name, arguments)


def _from_string(name: str, arguments: str, key: str) -> Action | str:
    """Reads arguments from a string that holds a JSON object, as in OpenAI's API."""
    error = f'The "{key}" of the call of {name!r} are a string that holds no JSON object.'
    try:
        value, problem, end = strict_json(arguments)
    except NotJson:
        return error
    if value is None and not problem:
        value = {}
    if not isinstance(value, dict) or skip(arguments, end) != len(arguments):
        return error
    return problem or Action(name, value)


def read_arguments(text: str, at: int, name: str) -> tuple[dict[str, Json], str, int]:
    """Reads the arguments at `at` of a call of `name`. null means no arguments.

    Returns the arguments, a sentence about what is wrong with them or "", and their end.
    """
    try:
        value, problem, end = strict_json(text, at)
    except NotJson as e:
        return {}, f"The arguments of the call of {name!r} are {e}", at
    if problem:
        return {}, problem, end
    if value is None:
        return {}, "", end
    if not isinstance(value, dict):
        return {}, f"The arguments of the call of {name!r} are not a JSON object.", end
    return value, "", end

"""Arguments of calls: strict JSON, and text that a tool's schema gives a type.

What comes out can be written as JSON anywhere: no NaN, no half characters, no numbers beyond 64 bits, bounded nesting.
A value that does not fit its schema stays the text it was: whether it will do is the environment's to say.
"""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.job import Json
from rollq_worker.toolcalls.turn import skip

MAX_DEPTH = 64
"""Levels of nesting in a call: far from what recursive code behind us can take."""
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""As JSON writes them, and as templates that print Python's values do."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def strict_json(text: str, at: int = 0) -> tuple[Json, list[str], int]:
    """The JSON value at `at`, what is wrong with it though it parses, and where it ends.

    Raises JSONDecodeError, or RecursionError for nesting that Python cannot take.
    """
    problems: list[str] = []

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            problems.append(f"The tool call names the key {twice!r} twice.")
        return fields

    def constant(name: str) -> None:
        problems.append(f"The tool call holds {name}, which is not JSON.")

    def integer(digits: str) -> int:
        if len(digits) <= 20 and -(2**63) <= (value := int(digits)) < 2**63:
            return value
        problems.append("The tool call holds an integer of more than 64 bits.")
        return 0

    def real(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            problems.append("The tool call holds a number that is too large.")
        return value

    decoder = json.JSONDecoder(
        object_pairs_hook=unique, parse_constant=constant, parse_int=integer, parse_float=real, strict=True
    )
    value, end = decoder.raw_decode(text, skip(text, at))
    if (depth := _depth(value)) > MAX_DEPTH:
        problems.insert(0, f"The tool call is nested {depth} levels deep, more than {MAX_DEPTH}.")
    elif _has_surrogate(value):
        problems.append("The tool call holds half of a surrogate pair (\\ud800 to \\udfff), which is no character.")
    return value, problems, end


def not_json(text: str, at: int, e: json.JSONDecodeError) -> str:
    """What is wrong with the JSON that starts at `at`."""
    cut_off = "Unterminated" in e.msg or e.pos >= len(text.rstrip())
    return f"not valid JSON: {e.msg} at character {e.pos - at}.{' It is cut off.' if cut_off else ''}"


def json_object(text: str, at: int, name: str) -> tuple[dict[str, Json], str, int]:
    """The arguments of a call of `name`: a JSON object at `at`, what is wrong ("": nothing), and where it ends."""
    try:
        value, problems, end = strict_json(text, at)
    except RecursionError:
        return {}, f"The tool call is nested deeper than {MAX_DEPTH} levels.", at
    except json.JSONDecodeError as e:
        return {}, f"The arguments of the call of {name!r} are {not_json(text, at, e)}", at
    if problems:
        return {}, problems[0], end
    if not isinstance(value, dict):
        return {}, f"The arguments of the call of {name!r} are not a JSON object.", end
    return value, "", end


def parameters(tools: Sequence[Json], name: str) -> Mapping[str, Json]:
    """The schemas of the parameters of the tool `name`; empty when it is unknown or has none."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            return properties if isinstance(properties, dict) else {}
    return {}


def typed(text: str, schema: Json) -> Json:
    """`text` as the type that the schema of its parameter asks for; itself where it is no such value.

    Formats that write values without quotes leave their type to the schema. Text that may be a string is one.
    """
    kinds = _kinds(schema)
    word = text.strip()
    if "null" in kinds and word in ("null", "None"):
        return None
    if not kinds or "string" in kinds:
        return text
    if word in _CONSTANTS:
        value = _CONSTANTS[word]
        return value if value is None or "boolean" in kinds else text
    if kinds & {"integer", "number"} and _NUMBER.fullmatch(word):
        return _number(word, kinds, text)
    if kinds & {"object", "array"}:
        return _nested(word, kinds, text)
    return text


def _kinds(schema: Json) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says."""
    if not isinstance(schema, dict):
        return frozenset()
    said = schema.get("type", [])
    kinds = {said} if isinstance(said, str) else {kind for kind in said if isinstance(kind, str)}
    for choice in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(choice) or ():
            kinds |= _kinds(option)
    if not kinds and isinstance(schema.get("enum"), list):
        kinds = {_kind(value) for value in schema["enum"]}
    if not kinds:
        kinds = {kind for key, kind in (("properties", "object"), ("items", "array")) if key in schema}
    return frozenset(kinds)


def _kind(value: Json) -> str:
    names: tuple[tuple[Any, str], ...] = (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _number(word: str, kinds: frozenset[str], text: str) -> Json:
    if re.fullmatch(r"[+-]?\d{1,19}", word) and -(2**63) <= (whole := int(word)) < 2**63:
        return whole
    value = float(word)
    if "number" in kinds and math.isfinite(value) and not re.fullmatch(r"[+-]?\d+", word):
        return value
    return text


def _nested(word: str, kinds: frozenset[str], text: str) -> Json:
    """A JSON object or array; as Python prints it where it is not JSON, because some templates do."""
    try:
        value, problems, end = strict_json(word)
        if problems or skip(word, end) != len(word):
            return text
    except RecursionError:
        return text
    except json.JSONDecodeError:
        value = _python(word)
    wanted: tuple[type, ...] = tuple(kind for kind, name in ((dict, "object"), (list, "array")) if name in kinds)
    return value if isinstance(value, wanted) else text


def _python(word: str) -> Json:
    """A Python literal that JSON can say, else None."""
    if len(word) > 20_000 or word.count("[") + word.count("{") + word.count("(") + word.count("-") > MAX_DEPTH:
        return None
    try:
        written = json.dumps(ast.literal_eval(word), allow_nan=False)
        value, problems, _ = strict_json(written)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return None if problems else value


def _depth(value: Json) -> int:
    """Levels of nesting; a scalar has none."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [item for node in level for item in (node.values() if isinstance(node, dict) else node)]
    return depth


def _has_surrogate(value: Json) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False

"""Types for values that a format writes as bare text: the tool's schema says which.

A value that does not fit its schema stays text. Whether text will do is the environment's decision.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.job import Json
from rollq_worker.strict_json import CONSTANTS, NotJson, read_number, skip, strict_json

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


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
    """`text` as the type that its parameter's schema asks for, or unchanged. Text that may be a string is one."""
    kinds = _kinds(schema)
    word = text.strip()
    if "null" in kinds and word in ("null", "None"):
        return None
    if not kinds or "string" in kinds:
        return text
    if word in CONSTANTS:
        value = CONSTANTS[word]
        return value if value is None or "boolean" in kinds else text
    if kinds & {"integer", "number"} and _NUMBER.fullmatch(word):
        number, problem = read_number(word)
        return text if problem or (isinstance(number, float) and "number" not in kinds) else number
    if kinds & {"object", "array"}:
        return _nested(word, kinds, text)
    return text


def _kinds(schema: Json) -> frozenset[str]:
    """The JSON types that a schema allows; empty when it does not say."""
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


def _nested(word: str, kinds: frozenset[str], text: str) -> Json:
    """A JSON object or array; where it is not JSON, what Python prints, because some templates print that."""
    try:
        value, problem, end = strict_json(word)
        if problem or skip(word, end) != len(word):
            return text
    except NotJson:
        value = _printed(word)
    wanted: tuple[type, ...] = tuple(kind for kind, name in ((dict, "object"), (list, "array")) if name in kinds)
    return value if isinstance(value, wanted) else text


_PRINTED = re.compile(
    r"""
      (?P<string>'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+")
    | (?P<word>(?<![\w.])[^\W\d]\w*+)
    | (?P<empty>\(\s*+\))
    | (?P<open>[\[({])
    | (?P<close>(?<=[^(\s]),\s*+\)|[\])}])
    | (?P<comma>,)
    | (?P<other>['"])
    """,
    re.VERBOSE,
)
"""What Python prints differently from JSON, and what tells a tuple from a value in brackets."""
_ESCAPE = re.compile(r"""\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|[\\'"nrt])|["\\]""")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ENDS = {"(": ")", "[": "]", "{": "}"}


def _printed(word: str) -> Json:
    """The value that Python prints as `word`, or None. One pass writes it as JSON: Python's own parser takes seconds
    for 100 KB."""
    opened: list[list[str]] = []  # for each open bracket: what closes it, and the last comma in it

    def as_json(found: re.Match[str]) -> str:
        token, kind = found[0], found.lastgroup
        if kind == "string":
            return f'"{_ESCAPE.sub(_escaped, token[1:-1])}"'
        if kind == "word":
            return _WORDS[token]
        if kind == "empty":
            return "[]"
        if kind == "open":
            opened.append([_ENDS[token], ""])
            return "[" if token == "(" else token
        if kind == "comma":
            opened[-1][1] = token
            return token
        if kind == "close":
            end, comma = opened.pop()
            if end == token[-1] and (end != ")" or comma or token[0] == ","):
                return "]" if end == ")" else end
        raise ValueError(token)

    try:
        written = _PRINTED.sub(as_json, word)
        value, problem, end = strict_json(written)
    except (ValueError, LookupError):
        return None
    return None if problem or skip(written, end) != len(written) else value


def _escaped(found: re.Match[str]) -> str:
    """A character of a Python string as JSON writes it."""
    says = found[1]
    if says is None:
        return {'"': '\\"'}[found[0]]
    if says[0] in "xuU":
        return json.dumps(chr(int(says[1:], 16)), ensure_ascii=False)[1:-1]
    return "'" if says == "'" else found[0]

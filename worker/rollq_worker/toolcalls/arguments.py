"""Arguments of calls: strict JSON, and text that a tool's schema gives a type.

What comes out can be written as JSON anywhere: no NaN, no half characters, no numbers beyond 64 bits, bounded nesting.
A value that does not fit its schema stays the text it was: whether it will do is the environment's to say.
"""

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.job import Json
from rollq_worker.toolcalls.pieces import skip

MAX_DEPTH = 64
"""Levels of nesting in a call: far from what recursive code behind us can take."""
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""As JSON writes them, and as templates that print Python's values do."""
_BLANK = re.compile(r"\s*+")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


_WINDOW, _GROWTH, _MARGIN = 1024, 8, 16
"""What is read of a text first, how many times more after that, and more than the part of a number or word that a
window may have cut off at its end."""


class NotJson(ValueError):
    """What is wrong with JSON, and where."""

    def __init__(self, msg: str, pos: int) -> None:
        super().__init__(msg)
        self.msg, self.pos = msg, pos


class _Decoder(threading.local):
    """Python's decoder, with what it lets pass that is wrong. One a thread: making one costs more than most errors."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.decode = json.JSONDecoder(
            object_pairs_hook=self._unique,
            parse_constant=self._constant,
            parse_int=self._integer,
            parse_float=self._real,
            strict=True,
        ).raw_decode

    def _unique(self, pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
            self.problems.append(f"The tool call names the key {twice!r} twice.")
        return fields

    def _constant(self, name: str) -> None:
        self.problems.append(f"The tool call holds {name}, which is not JSON.")

    def _integer(self, digits: str) -> int:
        if len(digits) <= 20 and -(2**63) <= (value := int(digits)) < 2**63:
            return value
        self.problems.append("The tool call holds an integer of more than 64 bits.")
        return 0

    def _real(self, digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            self.problems.append("The tool call holds a number that is too large.")
        return value


_DECODER = _Decoder()
_STARTS = frozenset('{["-0123456789tfnNI')


def strict_json(text: str, at: int = 0) -> tuple[Json, list[str], int]:
    """The JSON value at `at`, what is wrong with it though it parses, and where it ends.

    Raises NotJson, or RecursionError for nesting that Python cannot take. The cost depends on what is read, not on what
    is in front of it or behind it: Python's decoder counts the lines of all its text for every error, so it is given
    windows.
    """
    start, width = skip(text, at), _WINDOW
    if text[start : start + 1] not in _STARTS:
        raise NotJson("Expecting value", start)
    while True:
        _DECODER.problems.clear()
        window, wrong, value = text[start : start + width], "", None
        try:
            value, end = _DECODER.decode(window)
            reached = end
        except json.JSONDecodeError as e:
            wrong, end = e.msg, e.pos
            reached = len(window) if "Unterminated" in wrong else end
        if reached <= len(window) - _MARGIN or start + width >= len(text):
            break
        width *= _GROWTH
    end += start
    if wrong:
        raise NotJson(wrong, end)
    problems = _DECODER.problems.copy()
    if (depth := _depth(value)) > MAX_DEPTH:
        problems.insert(0, f"The tool call is nested {depth} levels deep, more than {MAX_DEPTH}.")
    elif _has_surrogate(value):
        problems.append("The tool call holds half of a surrogate pair (\\ud800 to \\udfff), which is no character.")
    return value, problems, end


def not_json(text: str, at: int, e: NotJson) -> str:
    """What is wrong with the JSON that starts at `at`."""
    cut_off = "Unterminated" in e.msg or _BLANK.fullmatch(text, e.pos)
    return f"not valid JSON: {e.msg} at character {e.pos - at}.{' It is cut off.' if cut_off else ''}"


def json_object(text: str, at: int, name: str) -> tuple[dict[str, Json], str, int]:
    """The arguments of a call of `name`: a JSON object at `at`, what is wrong ("": nothing), and where it ends."""
    try:
        value, problems, end = strict_json(text, at)
    except RecursionError:
        return {}, f"The tool call is nested deeper than {MAX_DEPTH} levels.", at
    except NotJson as e:
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
"""What Python writes otherwise than JSON does, and what tells a tuple from a value in brackets."""
_ESCAPE = re.compile(r"""\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|[\\'"nrt])|["\\]""")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ENDS = {"(": ")", "[": "]", "{": "}"}


def _printed(word: str) -> Json:
    """The value that Python prints like this, if JSON can say it; else None.

    It is written as JSON in one pass: Python's own parser takes seconds for 100 KB.
    """
    opened: list[list[str]] = []  # of each open bracket: what closes it, and the commas in it

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
        value, problems, end = strict_json(written)
    except (ValueError, LookupError, RecursionError):
        return None
    return None if problems or skip(written, end) != len(written) else value


def _escaped(found: re.Match[str]) -> str:
    """A character of a Python string as JSON writes it."""
    says = found[1]
    if says is None:
        return {'"': '\\"'}[found[0]]
    if says[0] in "xuU":
        return json.dumps(chr(int(says[1:], 16)), ensure_ascii=False)[1:-1]
    return "'" if says == "'" else found[0]


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

"""Types for values that a format writes as bare text: the tool's schema says which.

A value that fits no type of its schema is a malformed call: an environment that gets text in place
of a number or an object would do something else in silence.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from rollq.job import Json
from rollq_worker.text.strict_json import CONSTANTS, NotJson, read_number, skip, strict_json
from rollq_worker.toolcalls.literals import PYTHON_REPR, Cursor, Unreadable

_NULL = ("null", "None")
"""Ways in which templates write null: as JSON, and as Python prints it."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SCHEMA = "tool:"
"""The address of a tool's schema while its references are followed."""
_DEEPEST = 32
"""Schemas inside one another, references followed, after which the rest is not read."""
_KINDS = {
    "boolean": bool,
    "integer": int,
    "number": float,
    "string": str,
    "array": list,
    "object": dict,
}
_ALL = frozenset({*_KINDS, "null"})
"""The JSON types. A schema that allows `number` allows `integer`, too."""
_NAMES = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "double": "number",
    "str": "string",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "none": "null",
    "nonetype": "null",
}
"""Names that tools give their types by mistake; capitals (`STRING`) are another one."""
_WORDS_OF = {
    "object": frozenset({"properties", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems"}),
}
"""Words of a schema without a type that tell its type."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a tool by its schema."""

    schema: Json
    resolver: Any
    """Follows references (`$ref`, as pydantic writes them) from the tool's schema."""

    def read(self, key: str, text: str, kind: str = "") -> tuple[Json, str]:
        """Reads `text` as the type that the schema gives the parameter `key`. Where it allows
        several, `kind`, the type that the turn itself names, decides.

        Returns the value, and a sentence about what is wrong with it or "".

        `null` (`None` as Python prints it) is null where the schema allows null, else text. Other
        text that may be a string is one. Where every type is allowed, only null, objects and arrays
        are read, because a number and its text look the same. The text of an unknown parameter
        stays as it is.
        """
        kinds = self.kinds(key)
        if kinds is None:
            return text, ""
        if kind in kinds:
            kinds = frozenset({kind})
        readable = frozenset({"array", "null", "object"}) if kinds == _ALL else kinds
        value = typed(text, readable)
        is_wrong_null = value is None and "null" not in kinds
        is_wrong_string = isinstance(value, str) and "string" not in kinds
        if is_wrong_null or is_wrong_string:
            wanted = " or ".join(sorted(kinds)) or "none"
            return None, f"must be of type {wanted}, not {text.strip()[:40]!r}."
        return value, ""

    def kinds(self, key: str) -> frozenset[str] | None:
        """The JSON types that the schema allows for the property `key`. None if it is unknown."""
        return _of_property(self.schema, key, self.resolver)

    def fields(self, key: str) -> "Parameters":
        """The fields of the object `key`."""
        return Parameters(self._property(key), self.resolver)

    def items(self, key: str, name: str) -> "Parameters":
        """The items of the list `key`, as if each were a field called `name`."""
        items = list(_subschemas(self._property(key), "items", None, self.resolver))
        properties = {name: {"anyOf": items}} if items else {}
        return Parameters({"properties": properties}, self.resolver)

    def _property(self, key: str) -> Json:
        return {"anyOf": list(_subschemas(self.schema, "properties", key, self.resolver))}


def parameters(tools: Sequence[Json], name: str) -> Parameters:
    """The parameters of the tool `name`. There are none when the tool is unknown."""
    schema: Json = {}
    for function in _functions(tools):
        if function.get("name") == name:
            schema = function.get("parameters") or {}
            break
    resource = DRAFT202012.create_resource(schema)
    return Parameters(schema, Registry[Json]().with_resource(_SCHEMA, resource).resolver(_SCHEMA))


def is_tool(tools: Sequence[Json], name: str) -> bool:
    """True if a tool has that name."""
    return any(function.get("name") == name for function in _functions(tools))


def _functions(tools: Sequence[Json]) -> Iterable[Mapping[str, Json]]:
    return (tool.get("function", tool) for tool in tools)


def typed(text: str, kinds: frozenset[str]) -> Json:
    """`text` as one of these types, or unchanged. Text that may be a string is one, unless it says
    null.
    """
    word = text.strip()
    if "null" in kinds and word in _NULL:
        return None
    if "string" in kinds:
        return text
    if "boolean" in kinds and isinstance(CONSTANTS.get(word), bool):
        return CONSTANTS[word]
    if kinds & {"integer", "number"} and _NUMBER.fullmatch(word):
        return _number(word, kinds, text)
    if kinds & {"object", "array"}:
        return _nested(word, kinds, text)
    return text


def _number(word: str, kinds: frozenset[str], text: str) -> Json:
    """The number that `word` writes, or `text` if its type does not allow it."""
    number, problem = read_number(word)
    if problem:
        return text
    if isinstance(number, float) and "number" not in kinds:
        is_integer = number.is_integer() and -(2**63) <= number < 2**63
        return int(number) if is_integer else text  # JSON Schema takes 5.0 for an integer
    return number


def _of_property(schema: Json, key: str, resolver: Any, depth: int = 0) -> frozenset[str] | None:
    """The JSON types that the schema of an object allows for its property `key`. None if it is
    unknown.
    """
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return _kinds(properties[key], resolver)
    required: list[frozenset[str]] = []
    for part, part_resolver in _parts(schema, resolver):
        kinds = _of_property(part, key, part_resolver, depth + 1)
        if kinds is not None:
            required.append(kinds)
    for options in _choices(schema):
        alternatives = [_of_property(option, key, resolver, depth + 1) for option in options]
        allowed = [kinds for kinds in alternatives if kinds is not None]
        if allowed:
            required.append(frozenset().union(*allowed))
    if required:
        return _ALL.intersection(*required)
    others = schema.get("additionalProperties")
    return _kinds(others, resolver) if isinstance(others, dict) else None


def _subschemas(
    schema: Json, word: str, key: str | None, resolver: Any, depth: int = 0
) -> Iterator[Json]:
    """The schemas under `word` (of properties, under `key`) in a schema and in its parts."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    subschema = schema.get(word)
    if key is not None:
        if isinstance(subschema, dict) and key in subschema:
            subschema = subschema[key]
        else:
            subschema = schema.get("additionalProperties")
    if isinstance(subschema, dict):
        yield subschema
    parts = [part for part, _ in _parts(schema, resolver)]
    for options in _choices(schema):
        parts += options
    for part in parts:
        yield from _subschemas(part, word, key, resolver, depth + 1)


def _kinds(schema: Json, resolver: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows. All if it does not say."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return _ALL
    kinds = _own_kinds(schema)
    for part, part_resolver in _parts(schema, resolver):
        kinds &= _kinds(part, part_resolver, depth + 1)
    for options in _choices(schema):
        alternatives = (_kinds(option, resolver, depth + 1) for option in options)
        kinds &= frozenset().union(*alternatives)
    if schema.get("nullable") is True:
        return kinds | {"null"}
    return kinds


def _parts(schema: Mapping[str, Json], resolver: Any) -> Iterator[tuple[Json, Any]]:
    """The schemas that must hold as well, each with its resolver."""
    if "$ref" in schema:
        yield _look_up(schema["$ref"], resolver)
    if isinstance(parts := schema.get("allOf"), list):
        yield from ((part, resolver) for part in parts)


def _choices(schema: Mapping[str, Json]) -> Iterator[list[Json]]:
    """The lists of schemas one of which must hold."""
    for choice in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(choice), list) and options:
            yield options


def _own_kinds(schema: Mapping[str, Json]) -> frozenset[str]:
    """The JSON types that the schema's own keywords allow."""
    if kinds := _named_kinds(schema):
        return kinds
    if "const" in schema:
        return _kinds_of([schema["const"]])
    if isinstance(values := schema.get("enum"), list):
        return _kinds_of(values)
    for kind, keys in _WORDS_OF.items():
        if not keys.isdisjoint(schema):
            return frozenset({kind})
    return _ALL


def _named_kinds(schema: Mapping[str, Json]) -> frozenset[str]:
    """The types under `type`. Empty if it is missing or holds a word that is not a type."""
    names = schema.get("type") or []
    kinds = set()
    for name in names if isinstance(names, list) else [names]:
        if name is None:
            kinds.add("null")
        elif isinstance(name, str):
            kinds.add(_NAMES.get(name.lower(), name.lower()))
    if not kinds <= _ALL:
        return frozenset()
    if "number" in kinds:
        kinds.add("integer")
    return frozenset(kinds)


def _kinds_of(values: Iterable[Json]) -> frozenset[str]:
    names = {kind: name for name, kind in _KINDS.items()}
    return frozenset(names.get(type(value), "null") for value in values)


def _look_up(reference: Json, resolver: Any) -> tuple[Mapping[str, Json], Any]:
    """The schema that a reference names, and its resolver. Empty if it leads nowhere."""
    try:
        target = resolver.lookup(reference)
    except (Unresolvable, TypeError, AttributeError, ValueError):
        return {}, resolver
    schema = target.contents if isinstance(target.contents, dict) else {}
    return schema, target.resolver


def _nested(word: str, kinds: frozenset[str], text: str) -> Json:
    """A JSON object or array. If it is not JSON it is read as Python prints values, because some
    templates do.
    """
    try:
        value, problem, end = strict_json(word)
        if problem or skip(word, end) != len(word):
            return text
    except NotJson:
        value = _read_repr(word)
    is_allowed = (isinstance(value, dict) and "object" in kinds) or (
        isinstance(value, list) and "array" in kinds
    )
    return value if is_allowed else text


def _read_repr(word: str) -> Json:
    """The value that Python prints as `word`, or None."""
    cursor = Cursor(PYTHON_REPR, word)
    try:
        value = cursor.value()
    except Unreadable:
        return None
    return value if skip(word, cursor.at) == len(word) else None

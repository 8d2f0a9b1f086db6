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
from rollq_worker.strict_json import CONSTANTS, NotJson, read_number, skip, strict_json
from rollq_worker.toolcalls.literals import PRINTED, Cursor, Unreadable

_NULL = ("null", "None")
"""How templates write null: as JSON, and as Python prints it."""
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
    """What one tool's schema says of its parameters."""

    schema: Json
    resolver: Any
    """Follows references (`$ref`, as pydantic writes them) from the tool's schema."""

    def read(self, key: str, text: str) -> tuple[Json, str]:
        """`text` as the type that the schema of parameter `key` asks for, and what is wrong with it
        ("": nothing).

        `null` (`None` as Python prints it) is null where the schema allows null, else text. Other
        text that may be a string is one. Where every type is allowed, only null, objects and arrays
        are read, because a number and its text look the same. The text of an unknown parameter
        stays as it is.
        """
        kinds = self.kinds(key)
        if kinds is None:
            return text, ""
        value = typed(text, frozenset({"array", "null", "object"}) if kinds == _ALL else kinds)
        if (value is None and "null" not in kinds) or (
            isinstance(value, str) and "string" not in kinds
        ):
            return (
                None,
                f"must be of type {' or '.join(sorted(kinds)) or 'none'}, not "
                f"{text.strip()[:40]!r}.",
            )
        return value, ""

    def kinds(self, key: str) -> frozenset[str] | None:
        """The JSON types that the schema allows for the property `key`; None when it does not know
        it.
        """
        return _of_property(self.schema, key, self.resolver)

    def fields(self, key: str) -> "Parameters":
        """What the schema says of the fields of the object `key`."""
        return Parameters(
            {"anyOf": list(_found(self.schema, "properties", key, self.resolver))}, self.resolver
        )

    def items(self, key: str, name: str) -> "Parameters":
        """What it says of the items of the list `key`, as if each were a field called `name`."""
        lists = {"anyOf": list(_found(self.schema, "properties", key, self.resolver))}
        items = list(_found(lists, "items", None, self.resolver))
        return Parameters({"properties": {name: {"anyOf": items}} if items else {}}, self.resolver)


def parameters(tools: Sequence[Json], name: str) -> Parameters:
    """The parameters of the tool `name`. There are none when the tool is unknown."""
    schema = (
        next((f.get("parameters") for f in _functions(tools) if f.get("name") == name), None) or {}
    )
    resource = DRAFT202012.create_resource(schema)
    return Parameters(schema, Registry[Json]().with_resource(_SCHEMA, resource).resolver(_SCHEMA))


def is_tool(tools: Sequence[Json], name: str) -> bool:
    """Whether a tool has that name."""
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
        number, problem = read_number(word)
        if isinstance(number, float) and "number" not in kinds:
            whole = number.is_integer() and -(2**63) <= number < 2**63
            return int(number) if whole else text  # JSON Schema takes 5.0 for an integer
        return text if problem else number
    if kinds & {"object", "array"}:
        return _nested(word, kinds, text)
    return text


def _of_property(schema: Json, key: str, resolver: Any, depth: int = 0) -> frozenset[str] | None:
    """The JSON types that the schema of an object allows for its property `key`; None when it does
    not know it.
    """
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return _kinds(properties[key], resolver)
    found = [_of_property(part, key, there, depth + 1) for part, there in _parts(schema, resolver)]
    found += [
        _alternatives([_of_property(option, key, resolver, depth + 1) for option in options])
        for options in _choices(schema)
    ]
    known = [kinds for kinds in found if kinds is not None]
    if known:
        return _ALL.intersection(*known)
    others = schema.get("additionalProperties")
    return _kinds(others, resolver) if isinstance(others, dict) else None


def _found(
    schema: Json, word: str, key: str | None, resolver: Any, depth: int = 0
) -> Iterator[Json]:
    """The schemas that stand under `word` (of properties, under `key`) in a schema and in those
    that it is made of.
    """
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    own = schema.get(word)
    if key is not None:
        own = (
            own[key] if isinstance(own, dict) and key in own else schema.get("additionalProperties")
        )
    if isinstance(own, dict):
        yield own
    parts = [part for part, _ in _parts(schema, resolver)] + [
        option for all in _choices(schema) for option in all
    ]
    for part in parts:
        yield from _found(part, word, key, resolver, depth + 1)


def _alternatives(found: Sequence[frozenset[str] | None]) -> frozenset[str] | None:
    """What any of several schemas allows; None when none knows the property."""
    known = [kinds for kinds in found if kinds is not None]
    return frozenset().union(*known) if known else None


def _kinds(schema: Json, resolver: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; all when it does not say."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return _ALL
    kinds = _said(schema)
    for part, there in _parts(schema, resolver):
        kinds &= _kinds(part, there, depth + 1)
    for options in _choices(schema):
        kinds &= frozenset().union(*(_kinds(option, resolver, depth + 1) for option in options))
    return kinds | {"null"} if schema.get("nullable") is True else kinds


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


def _said(schema: Mapping[str, Json]) -> frozenset[str]:
    """What the schema's own words allow."""
    if "type" in schema:
        said = schema["type"] if isinstance(schema["type"], list) else [schema["type"] or {}]
        named = (
            "null" if kind is None else kind.lower()
            for kind in said
            if kind is None or isinstance(kind, str)
        )
        kinds = frozenset(_NAMES.get(kind, kind) for kind in named)
        if kinds and kinds <= _ALL:
            return kinds | {"integer"} if "number" in kinds else kinds
    if "const" in schema:
        return _kinds_of([schema["const"]])
    if isinstance(values := schema.get("enum"), list):
        return _kinds_of(values)
    for kind, keys in _WORDS_OF.items():
        if not keys.isdisjoint(schema):
            return frozenset({kind})
    return _ALL


def _kinds_of(values: Iterable[Json]) -> frozenset[str]:
    names = {kind: name for name, kind in _KINDS.items()}
    return frozenset(names.get(type(value), "null") for value in values)


def _look_up(reference: Json, resolver: Any) -> tuple[Mapping[str, Json], Any]:
    """What a reference names, and the resolver for it; an empty schema when it leads nowhere."""
    try:
        found = resolver.lookup(reference)
    except (Unresolvable, TypeError, AttributeError, ValueError):
        return {}, resolver
    return found.contents if isinstance(found.contents, dict) else {}, found.resolver


def _nested(word: str, kinds: frozenset[str], text: str) -> Json:
    """A JSON object or array; where it is not JSON, what Python prints, because some templates
    print that.
    """
    try:
        value, problem, end = strict_json(word)
        if problem or skip(word, end) != len(word):
            return text
    except NotJson:
        value = _printed(word)
    wanted: tuple[type, ...] = tuple(
        kind for kind, name in ((dict, "object"), (list, "array")) if name in kinds
    )
    return value if isinstance(value, wanted) else text


def _printed(word: str) -> Json:
    """The value that Python prints as `word`, or None."""
    cursor = Cursor(PRINTED, word)
    try:
        value = cursor.value()
    except Unreadable:
        return None
    return value if skip(word, cursor.at) == len(word) else None

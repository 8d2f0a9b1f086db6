"""Tests that every reader of calls must pass, for ours and for those of plug-ins.

    TestMine = reader_tests(MY_READER, write)

pytest collects the class. `write(name, arguments)` is a turn with one call, as the chat template
writes it. The turns are made from it with fixed seeds, whole and mutated; an error names the
shortest turn that fails. Standard library only. It does not test what a format does beyond that,
such as ids of calls.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from rollq.env import Action
from rollq.job import Json
from rollq_worker.toolcalls.pieces import Kind, Reader

Write = Callable[[str, Mapping[str, Json]], str]
_ADDRESS = {"street": "Long St 1", "no": 7, "tags": ["a b", "c"], "flat": None}
_SCHEMAS: Mapping[str, tuple[Json, Sequence[Json]]] = {
    "text": (
        {"type": "string"},
        ["hi", "007", "true", "é🙂", "a b", "it's so", 'say "hi"', "a,\nb: {c} [1]"],
    ),
    "count": ({"type": "integer"}, [0, -3, 12, 2**63 - 1, -(2**63)]),
    "price": ({"type": "number"}, [1.5, -0.25, 2, 1e21]),
    "fast": ({"type": "boolean"}, [True, False]),
    "data": ({"type": "object"}, [{}, _ADDRESS, {"a b": {"c": [1, {"d": True}]}}]),
    "items": ({"type": "array"}, [[], ["a", 2, None], [[1.5], {"k": "v"}]]),
    "maybe": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [None, 5]),
    "nullable": ({"type": "integer", "nullable": True}, [None, 5]),
    "address": ({"$ref": "#/$defs/Address"}, [_ADDRESS]),
    "optional": (
        {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None},
        [_ADDRESS, None],
    ),
    "described": ({"allOf": [{"$ref": "#/$defs/Address"}], "description": "where"}, [_ADDRESS]),
    "level": ({"$ref": "#/$defs/Level"}, [1, 2]),
    "fixed": ({"const": 3}, [3]),
    "one_of": (
        {"oneOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "integer"}}]},
        [False, [1, 2]],
    ),
    "any": ({"description": "anything"}, [{"a": 1}, [True]]),
}
"""Parameters of the tools: the schema of each, and values that fit it."""
_DEFS: Json = {
    "Address": {
        "type": "object",
        "properties": {"street": {"type": "string"}, "no": {"type": "integer"}},
    },
    "Level": {"enum": [1, 2]},
}
_NAMES = ("f", "get_order")
TOOLS: Sequence[Json] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {key: schema for key, (schema, _) in _SCHEMAS.items()},
                "$defs": _DEFS,
            },
        },
    }
    for name in _NAMES
)
"""The tools whose calls are written: their parameters have every kind of schema."""
_WORDS = (*"`'\"{}[]:,<> \n", "hi", "1e999", "null", "NaN", "\ufffd", "é")
_TURNS = 400
_LONGEST_ERROR = 300


class FormatTests:
    """The tests of one reader."""

    reader: ClassVar[Reader]

    @staticmethod
    def write(name: str, arguments: Mapping[str, Json]) -> str:
        """A turn with one call."""
        raise NotImplementedError

    def test_every_well_formed_call_is_read_as_it_is(self) -> None:
        for key, (_, values) in _SCHEMAS.items():
            for value in values:
                self._is_read({key: value})
        rng = random.Random(1)
        for _ in range(_TURNS // 4):
            self._is_read(_random_arguments(rng))

    def test_a_value_that_fits_no_type_is_no_call(self) -> None:
        """For formats without quotes: a value of the wrong type must be an error, because a string
        would be acted on silently.
        """
        for key, (_, values) in _SCHEMAS.items():
            if key in ("text", "any") or self.write("f", {key: "5"}) != self.write("f", {key: 5}):
                continue
            read = self.reader(self.write("f", {key: "some words"}), False, TOOLS)
            if read.calls or not read.errors:
                calls = list(read.calls)
                raise AssertionError(f"{key} = some words: {calls}; {values[0]!r} would fit")

    def test_a_call_cut_anywhere_is_never_another_call(self) -> None:
        """At the token limit, a part of a call is an error, text, or the call without its end."""
        rng = random.Random(2)
        for arguments in ({}, {"text": "hi"}, *(_random_arguments(rng) for _ in range(6))):
            turn = self.write("f", arguments)
            for end in range(len(turn)):
                calls = list(self.reader(turn[:end], False, TOOLS).calls)
                if calls not in ([], [Action("f", arguments)]):
                    raise AssertionError(f"{turn[:end]!r} of {turn!r} is read as {calls}")

    def test_pieces_tile_every_turn_and_no_text_is_lost(self) -> None:
        failures: list[tuple[str, str]] = []
        for text in _turns(self.write, self.reader.think):
            for inside in (False, True, None):
                if problem := _problem(self.reader, text, inside):
                    failures.append((text, f"{problem} (thinking={inside})"))
        if failures:
            text, problem = min(failures, key=lambda failure: len(failure[0]))
            raise AssertionError(f"{len(failures)} turns fail. The shortest: {text!r}: {problem}")

    def _is_read(self, arguments: Mapping[str, Json]) -> None:
        text = self.write("get_order", arguments)
        read = self.reader(text, False, TOOLS)
        calls, errors = list(read.calls), list(read.errors)
        expected = Action("get_order", arguments)
        if calls != [expected] or _types(calls[0].arguments) != _types(arguments):
            raise AssertionError(f"{text!r} is read as {calls}, errors {errors}")
        if errors or read.content:
            raise AssertionError(
                f"{text!r} is a call, but has errors {errors}, content {read.content!r}"
            )


def reader_tests(reader: Reader, write: Write) -> type[FormatTests]:
    """The class of tests for `reader`. Give it a name that begins with Test.

    `write(name, arguments)` is the text of a turn that calls the tool `name` and says nothing else,
    without the token that ends the turn.
    """
    return type("ReaderTests", (FormatTests,), {"reader": reader, "write": staticmethod(write)})


def _random_arguments(rng: random.Random) -> dict[str, Json]:
    keys = rng.sample(list(_SCHEMAS), rng.randint(0, 4))
    return {key: rng.choice(_SCHEMAS[key][1]) for key in keys}


def _types(value: Json) -> Json:
    """The value with the type of each scalar in its place, so that 1 and True differ."""
    if isinstance(value, Mapping):
        return {key: _types(item) for key, item in value.items()}
    return [_types(item) for item in value] if isinstance(value, list) else type(value)


def _turns(write: Write, think: Sequence[str]) -> Iterator[str]:
    """Random turns: calls, parts of calls and words in any order, and calls with random edits."""
    rng = random.Random(3)
    calls = [write(name, _random_arguments(rng)) for name in _NAMES for _ in range(10)]
    part_pattern = re.compile(r"<[^<>]*>|\[/?[A-Z_]+\]|\w+|\s+|.")
    parts = sorted({match for call in calls for match in part_pattern.findall(call)})
    sources = (calls, parts, parts, _WORDS, think)
    for _ in range(_TURNS):
        words = [rng.choice(rng.choice(sources)) for _ in range(rng.randint(0, 20))]
        yield "".join(words)
        text = rng.choice(calls)
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(text) + 1)
            end = min(len(text), start + rng.randint(0, 12))
            replacement = rng.choice(
                ("", text[start:end] * 2, rng.choice(parts), rng.choice(_WORDS))
            )
            text = text[:start] + replacement + text[end:]
        yield text


def _problem(reader: Reader, text: str, inside: bool | None) -> str:
    """The first thing that a reader does wrong with a turn, or ""."""
    try:
        pieces = reader.pieces(text, inside, TOOLS)
        read = reader(text, inside, TOOLS)
        arguments = [dict(call.arguments) for call in read.calls]
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except Exception as e:  # readers never raise
        return f"{type(e).__name__}: {e}"
    starts = [*(piece.start for piece in pieces), len(text)]
    ends = [0, *(piece.end for piece in pieces)]
    if starts != ends:
        return "the pieces do not tile the turn"
    for piece in pieces:
        if piece.calls and piece.kind is not Kind.CALL:
            return f"a piece of kind {piece.kind} has calls"
        if piece.kind is Kind.CALL and not piece.calls:
            return "a piece of kind call has no calls"
        if piece.kind is Kind.BROKEN and not piece.errors:
            return "a piece of kind broken has no errors"
    if not all(call.name for call in read.calls):
        return "a call has no name"
    if not all(e.endswith(".") and len(e) <= _LONGEST_ERROR for e in read.errors):
        return f"an error must be a sentence of at most {_LONGEST_ERROR} characters"
    content = [text[p.start : p.end] for p in pieces if p.kind in (Kind.TEXT, Kind.BROKEN)]
    if read.content != "".join(content).strip():
        return "text is lost"
    return ""

"""Calls written as a list of Python calls: LFM2's between tokens, Llama 4's and Gemma 3's as a line of the turn.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>
    [f(a=1, b="x"), g()]

Arguments have names, and values are literals of Python or of JSON. A string may run over lines, because LFM2.5's
template writes it so. LFM2 may also write a list of JSON objects. Nothing is evaluated, and reading takes time in
proportion to the list.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollq.env import Action
from rollq.job import Json
from rollq_worker.strict_json import CONSTANTS, MAX_DEPTH, TOO_DEEP, read_number, skip
from rollq_worker.toolcalls.call_object import read_calls
from rollq_worker.toolcalls.pieces import Kind, Piece, Reader, block_reader, broken, cut, unclosed

_FORM = 'Write [name(argument="value", ...)].'
_NAME = re.compile(r"[^\W\d][\w.\-]*+(?=\s*+\()")
_KEY = re.compile(r"([^\s=(),'\"\[\]{}](?:[^=(),'\"\[\]{}\n]*[^\s=(),'\"\[\]{}])?)\s*+=(?!=)")
"""Of a schema, so it need not be a name in Python."""
_STRING = re.compile(r"'((?:[^'\\]++|\\.)*+)'|\"((?:[^\"\\]++|\\.)*+)\"", re.DOTALL)
_NUMBER = re.compile(r"[+-]?[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?(?![\w.])")
_WORD = re.compile(r"[^\W\d]\w*+")
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|[0-7]{1,3}|[xuUN]|[\\'\"nrtbfav]|\n)"
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_CLOSE = {"[": "]", "(": ")", "{": "}"}
_BARE = re.compile(r"^[ \t]*+\[\s*+[^\W\d][\w.\-]*+\(", re.MULTILINE)
"""A line, or a text behind reasoning, that begins with a call in a list."""


class _Unreadable(Exception):
    """What is wrong with a list of calls, in words."""


@dataclass(slots=True)
class _Cursor:
    """Reads literals of a text, from `at` on."""

    text: str
    at: int

    def take(self, token: str) -> bool:
        """Whether this token comes next. It is passed over, with the white space around it."""
        self.at = skip(self.text, self.at)
        if not self.text.startswith(token, self.at):
            return False
        self.at = skip(self.text, self.at + len(token))
        return True

    def found(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What the pattern matches next, which is passed over."""
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def calls(self) -> list[Action]:
        """The list of calls. Raises _Unreadable."""
        if not self.take("["):
            raise self.wrong("the list of calls must begin with '['")
        calls = []
        while not self.take("]"):
            calls.append(self.call())
            if not self.take(",") and not self.text.startswith("]", self.at):
                raise self.wrong("expected ',' or ']' after a call")
        if not calls:
            raise _Unreadable(f"The list of tool calls is empty. {_FORM}")
        return calls

    def call(self) -> Action:
        name = self.found(_NAME)
        if name is None or not self.take("("):
            raise self.wrong("expected a tool's name and '('")
        arguments: dict[str, Json] = {}
        while not self.take(")"):
            key = self.found(_KEY)
            if key is None:
                raise self.wrong("expected name=value")
            if key[1] in arguments:
                raise _Unreadable(f"The call of {name[0]!r} names the argument {key[1]!r} twice.")
            arguments[key[1]] = self.value()
            if not self.take(",") and not self.text.startswith(")", self.at):
                raise self.wrong("expected ',' or ')' after an argument")
        return Action(name[0], arguments)

    def value(self, depth: int = 0) -> Json:
        self.at = skip(self.text, self.at)
        opened = self.text[self.at : self.at + 1]
        if opened and opened in _CLOSE:
            if depth >= MAX_DEPTH:
                raise _Unreadable(TOO_DEEP)
            self.take(opened)
            return self.fields(depth) if opened == "{" else self.items(_CLOSE[opened], depth)
        if found := self.found(_STRING):
            return _string(found[1] if found[1] is not None else found[2])
        if found := self.found(_NUMBER):
            number, problem = read_number(found[0])
            if problem:
                raise _Unreadable(problem)
            return number
        if (found := _WORD.match(self.text, self.at)) and found[0] in CONSTANTS:
            self.at = found.end()
            return CONSTANTS[found[0]]
        if opened in ("'", '"'):
            raise _Unreadable(f"The tool call is not valid: a string has no closing quote. It is cut off. {_FORM}")
        raise self.wrong("expected a value: a string in quotes, a number, True, False, None, a list or an object")

    def items(self, close: str, depth: int) -> Json:
        """A list, a tuple, or the value that stands in parentheses."""
        items, comma = [], False
        while not self.take(close):
            items.append(self.value(depth + 1))
            comma = self.take(",")
            if not comma and not self.text.startswith(close, self.at):
                raise self.wrong(f"expected ',' or '{close}' after a value")
        return items[0] if close == ")" and len(items) == 1 and not comma else items

    def fields(self, depth: int) -> dict[str, Json]:
        fields: dict[str, Json] = {}
        while not self.take("}"):
            key = self.found(_STRING)
            if key is None or not self.take(":"):
                raise self.wrong("expected a key in quotes and ':'")
            name = _string(key[1] if key[1] is not None else key[2])
            if name in fields:
                raise _Unreadable(f"The tool call names the key {name!r} twice.")
            fields[name] = self.value(depth + 1)
            if not self.take(",") and not self.text.startswith("}", self.at):
                raise self.wrong("expected ',' or '}' after a value")
        return fields

    def wrong(self, what: str) -> _Unreadable:
        here = self.text[self.at : self.at + 20]
        where = f"at {here!r}" if here else "at its end. It is cut off"
        return _Unreadable(f"The tool call is not valid: {what}, {where}. {_FORM}")


def _string(inside: str) -> str:
    """The value of a string of Python. An unknown escape stays as it is, as in Python."""
    value = _ESCAPE.sub(_unescaped, inside) if "\\" in inside else inside
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16") if "\\" in inside else value
    except UnicodeDecodeError:
        raise _Unreadable("The tool call holds half of a surrogate pair, which is not a character.") from None


def _unescaped(found: re.Match[str]) -> str:
    says = found[1]
    if says in ("x", "u", "U", "N"):
        raise _Unreadable(f"The tool call holds the escape {found[0]} without the digits of a character.")
    if says[0] in "xuU":
        return chr(int(says[1:], 16))
    return chr(int(says, 8)) if says[0] in "01234567" else _ESCAPED.get(says, says)


_LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
_LLAMA4 = ("<|python_start|>", "<|python_end|>")


def _block(tags: tuple[str, str], text: str, start: int) -> Piece:
    """The calls between two tags."""
    at = skip(text, start + len(tags[0]))
    if text.startswith("{", at) or (text.startswith("[", at) and text.startswith("{", skip(text, at + 1))):
        end, calls, _, errors = read_calls(text, at, _FORM)
    else:
        cursor = _Cursor(text, at)
        calls, errors = (), ()
        try:
            calls = tuple(cursor.calls())
        except _Unreadable as e:
            errors = (str(e),)
        end = cursor.at
    end = skip(text, end)
    if not errors and not text.startswith(tags[1], end) and end < len(text):
        errors = (f"The tool call has text behind its list. {_FORM}",)
    if errors:
        return broken(text, start, end, tags, *errors)
    if end == len(text):
        return Piece(Kind.CALL, start, end, calls=unclosed(calls))
    return Piece(Kind.CALL, start, end + len(tags[1]), calls=calls)


def _pieces(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
    pieces: list[Piece] = []
    for piece in cut(text, {_LLAMA4[0]: lambda text, start, _: [_block(_LLAMA4, text, start)]}, thinking):
        pieces += _lists(text, piece) if piece.kind is Kind.TEXT else [piece]
    return pieces


def _lists(text: str, piece: Piece) -> Sequence[Piece]:
    """A text cut at the lines that begin with a list of calls. A list that cannot be read reaches to the next one."""
    found: list[Piece] = []
    done, text = 0, text[piece.start : piece.end]
    while begun := _BARE.search(text, done):
        if begun.start() > done:
            found.append(Piece(Kind.TEXT, done, begun.start()))
        cursor = _Cursor(text, begun.start())
        try:
            calls = tuple(cursor.calls())
            found.append(Piece(Kind.CALL, begun.start(), cursor.at, calls=calls))
        except _Unreadable as e:
            after = _BARE.search(text, begun.end())
            end = after.start() if after else len(text)
            found.append(Piece(Kind.BROKEN, begun.start(), end, errors=(str(e),)))
        done = found[-1].end
    if done < len(text):
        found.append(Piece(Kind.TEXT, done, len(text)))
    return [replace(part, start=piece.start + part.start, end=piece.start + part.end) for part in found]


LFM2 = block_reader({_LFM2[0]: lambda text, start, _: [_block(_LFM2, text, start)]})
PYTHONIC = Reader(_pieces)

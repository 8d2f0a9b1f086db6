"""Values in a notation that is not JSON: as Python writes them, as Python prints them, and as Gemma
does.

Nothing is evaluated, and reading takes time in proportion to the text. It does not know how calls
are marked.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollq.job import Json
from rollq_worker.text.strict_json import CONSTANTS, MAX_DEPTH, TOO_DEEP, read_number, skip

_WORD = re.compile(r"[^\W\d]\w*+")
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|[0-7]{1,3}|[xuUN]|[\\'\"nrtbfav]|\n)"
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}


class Unreadable(Exception):
    """A text cannot be read. The message is a sentence for the policy."""


def python_string(inside: str) -> str:
    """The value of a Python string literal, given the text between its quotes. Unknown escapes
    stay, as in Python.

    Raises Unreadable.
    """
    if "\\" not in inside:
        return inside
    try:
        return _ESCAPE.sub(_unescaped, inside).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Unreadable(
            "The tool call holds half of a surrogate pair, which is not a character."
        ) from None


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code in ("x", "u", "U", "N"):
        raise Unreadable(
            f"The tool call holds the escape {escape[0]} without the digits of a character."
        )
    if code[0] in "xuU":
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """A way to write values."""

    string: re.Pattern[str]
    """Matches a string. One of its groups is the text between the quotes."""
    key: re.Pattern[str]
    """Matches a key of an object; groups as in `string`."""
    quotes: tuple[str, ...]
    """The texts that open a string."""
    number: re.Pattern[str] = re.compile(
        r"[+-]?[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?(?![\w.])"
    )
    """Matches a number. Leading zeros, which Python refuses, are read."""
    constants: Mapping[str, Json]
    closing: Mapping[str, str]
    """The closing bracket of each bracket that opens a list or an object."""
    unescape: Callable[[str], str] = str
    """Turns the text between quotes into a value."""
    form: str = ""
    """The right way to write a call, told to the policy."""


_STRING = r"'([^'\\{0}]*+(?:\\.[^'\\{0}]*+)*)'|\"([^\"\\{0}]*+(?:\\.[^\"\\{0}]*+)*)\""
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
PYTHON_REPR = Notation(
    string=re.compile(_STRING.format(r"\n")),
    key=re.compile(_STRING.format(r"\n")),
    quotes=("'", '"'),
    constants={"True": True, "False": False, "None": None},
    closing=_BRACKETS,
    unescape=python_string,
)
"""Values as Python prints them."""
PYTHON_SOURCE = Notation(
    string=re.compile(_STRING.format(""), re.DOTALL),
    key=re.compile(_STRING.format(""), re.DOTALL),
    quotes=("'", '"'),
    constants=CONSTANTS,
    closing=_BRACKETS,
    unescape=python_string,
    form='Write [name(argument="value", ...)].',
)
"""Values as models write them. A string may run over lines, and constants may be those of JSON."""


@dataclass(slots=True)
class Cursor:
    """Reads values of a text, from `at` on. Its methods raise Unreadable."""

    notation: Notation
    text: str
    at: int = 0

    def take(self, token: str) -> bool:
        """Passes over this token and the white space around it. False if it does not come next."""
        self.at = skip(self.text, self.at)
        if not self.text.startswith(token, self.at):
            return False
        self.at = skip(self.text, self.at + len(token))
        return True

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Passes over the text that the pattern matches here."""
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def value(self, depth: int = 0) -> Json:
        self.at = skip(self.text, self.at)
        bracket = self.text[self.at : self.at + 1]
        if bracket in self.notation.closing:
            return self._container(bracket, depth)
        if string := self.match(self.notation.string):
            return self._string(string)
        if digits := self.match(self.notation.number):
            number, problem = read_number(digits[0])
            if problem:
                raise Unreadable(problem)
            return number
        word = _WORD.match(self.text, self.at)
        if word and word[0] in self.notation.constants:
            self.at = word.end()
            return self.notation.constants[word[0]]
        if self.text.startswith(self.notation.quotes, self.at):
            message = "The tool call is not valid: a string has no closing quote. It is cut off."
            raise Unreadable(f"{message} {self.notation.form}")
        raise self.error(
            "expected a value: a string in quotes, a number, True, False, None, a list or an object"
        )

    def _container(self, bracket: str, depth: int) -> Json:
        if depth >= MAX_DEPTH:
            raise Unreadable(TOO_DEEP)
        self.take(bracket)
        if bracket == "{":
            return self.fields(depth + 1)
        return self._items(self.notation.closing[bracket], depth + 1)

    def fields(self, depth: int) -> dict[str, Json]:
        """Reads keys and values up to the closing bracket."""
        fields: dict[str, Json] = {}
        while not self.take("}"):
            key = self.match(self.notation.key)
            if key is None or not self.take(":"):
                raise self.error("expected a key and ':'")
            name = self._string(key)
            if name in fields:
                raise Unreadable(f"The tool call names the key {name[:80]!r} twice.")
            fields[name] = self.value(depth)
            self.take_comma("}", "a value")
        return fields

    def take_comma(self, close: str, after: str) -> bool:
        """Passes over a comma. False if `close` comes next instead. Raises Unreadable if neither
        does.
        """
        comma = self.take(",")
        if not comma and not self.text.startswith(close, self.at):
            raise self.error(f"expected ',' or '{close}' after {after}")
        return comma

    def error(self, problem: str) -> Unreadable:
        here = self.text[self.at : self.at + 20]
        where = f"at {here!r}" if here else "at its end. It is cut off"
        return Unreadable(f"The tool call is not valid: {problem}, {where}. {self.notation.form}")

    def _items(self, close: str, depth: int) -> Json:
        """Reads a list or a tuple, or a single value in parentheses."""
        items = []
        comma = False
        while not self.take(close):
            items.append(self.value(depth))
            comma = self.take_comma(close, "a value")
        is_parenthesized_value = close == ")" and len(items) == 1 and not comma
        return items[0] if is_parenthesized_value else items

    def _string(self, match: re.Match[str]) -> str:
        inside = next(group for group in match.groups() if group is not None)
        return self.notation.unescape(inside)

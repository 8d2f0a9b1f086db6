"""Strict JSON inside a sampled turn.

The values that it reads can be written as JSON anywhere: no NaN, no repeated key, no half a
surrogate pair, no number beyond 64 bits, and bounded nesting. It does not know how calls are
marked.
"""

import json
import math
import re
import threading
from collections import Counter

from rollq.job import Json

MAX_DEPTH = 64
"""Most levels of nesting in a call: far fewer than recursive code can take."""
CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""Constants as JSON writes them, and as Python does, because some templates print Python values."""
TOO_DEEP = f"The tool call is nested deeper than {MAX_DEPTH} levels."
_BLANK = re.compile(r"\s*+")
_SPACES = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_STARTS = frozenset('{["-0123456789tfnNI')
_WINDOW, _GROWTH, _MARGIN = 1024, 8, 16
"""Characters that are decoded first, the factor for each next try, and more characters than the
part of a number or word that the end of a window may have cut off.
"""


class NotJson(ValueError):
    """Text that is not JSON, in words; `pos` is where reading stopped."""

    def __init__(self, wrong: str, text: str, start: int, pos: int) -> None:
        cut_off = _unclosed(text, pos) or _BLANK.fullmatch(text, pos)
        what = f"{wrong.removesuffix(' at')} at character {pos - start}"
        super().__init__(f"not valid JSON: {what}.{' It is cut off.' if cut_off else ''}")
        self.pos = pos


class _Decoder(threading.local):
    """Python's decoder, which also records values that it accepts although JSON forbids them. One
    per thread, because making one is expensive.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.decode = json.JSONDecoder(
            object_pairs_hook=self._unique,
            parse_constant=self._constant,
            parse_int=self._number,
            parse_float=self._number,
            strict=True,
        ).raw_decode

    def _unique(self, pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            self.problems.append(f"The tool call names the key {twice[:80]!r} twice.")
        return fields

    def _constant(self, name: str) -> None:
        self.problems.append(f"The tool call holds {name}, which is not JSON.")

    def _number(self, word: str) -> int | float:
        value, problem = read_number(word)
        if problem:
            self.problems.append(problem)
        return value


_DECODER = _Decoder()


def read_number(word: str) -> tuple[int | float, str]:
    """The number that `word` writes, and its problem or ""."""
    if re.fullmatch(r"[+-]?\d+", word):
        number = int(word) if len(word) <= 20 else 2**63
        if -(2**63) <= number < 2**63:
            return number, ""
        return 0, "The tool call holds an integer of more than 64 bits."
    value = float(word)
    if math.isfinite(value):
        return value, ""
    return value, "The tool call holds a number that is too large."


def strict_json(text: str, at: int = 0) -> tuple[Json, str, int]:
    """The JSON value at `at`, its problem though it parses or "", and its end.

    Raises NotJson. The cost depends on the value alone: Python's decoder counts the lines of all
    its text for each error, so it only gets windows of the text.
    """
    start = skip(text, at)
    width = _WINDOW
    if text[start : start + 1] not in _STARTS:
        raise NotJson("Expecting value", text, at, start)
    while True:
        _DECODER.problems.clear()
        window = text[start : start + width]
        wrong = ""
        value = None
        try:
            value, end = _DECODER.decode(window)
            reached = end
        except json.JSONDecodeError as e:
            wrong = e.msg
            end = e.pos
            reached = len(window) if _unclosed(window, end) else end
        except RecursionError:
            return None, TOO_DEEP, at
        if reached <= len(window) - _MARGIN or start + width >= len(text):
            break
        width *= _GROWTH
    end += start
    if wrong:
        raise NotJson(wrong, text, at, end)
    problems = [*_shape_problems(value, text[start:end]), *_DECODER.problems]
    return value, problems[0] if problems else "", end


def _unclosed(text: str, at: int) -> bool:
    """True if a string begins there that does not end."""
    return text.startswith('"', at) and not _STRING.match(text, at)


def _shape_problems(value: Json, written: str) -> list[str]:
    depth = _depth(value)
    if depth > MAX_DEPTH:
        return [f"The tool call is nested {depth} levels deep, more than {MAX_DEPTH}."]
    if written.isascii() and "\\u" not in written:
        # as most calls are, and writing them again takes long
        return []
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return [
            "The tool call holds half of a surrogate pair (\\ud800 to \\udfff), which is not a "
            "character."
        ]
    return []


def _depth(value: Json) -> int:
    """Levels of nesting; a scalar has none."""
    depth = 0
    level = [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [
            item for node in level for item in (node.values() if isinstance(node, dict) else node)
        ]
    return depth


def skip(text: str, at: int) -> int:
    """The first place from `at` on that is not white space."""
    spaces = _SPACES.match(text, at)
    return spaces.end() if spaces else at

"""Tools of a benchmark's package, called with what a model made up.

The invariants: a wrong call becomes an observation. A tool gets its own copy of the arguments, so
it may keep or change them. Only arguments of bounded depth are copied. It knows no benchmark and no
database.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any

from rollq.job import Json

MAX_DEPTH = 50
"""Deepest nesting of a call's arguments, because copying, hashing and printing them recurses."""
MAX_INTEGER = 2**63
"""Largest absolute value of an integer in a call's arguments, because Python's integers are
unbounded.
"""
MAX_BITS = 10_000
"""Longest number, in bits, that `calculate` may work on; far more than a float holds."""
TOOL_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions that a tool raises when it is called wrongly. All others pass, such as the time limits
that some task queues raise into running code.
"""


def guarded(tool: Callable[[dict[str, Json]], str], arguments: Mapping[str, Json]) -> str:
    """The result of a tool on a copy of the arguments, or `Error: ...`."""
    try:
        return tool({name: own_copy(value) for name, value in arguments.items()})
    except TOOL_ERRORS as e:
        return f"Error: {e}"


def own_copy(value: Json, depth: int = 0) -> Json:
    """A deep copy of a call's argument. Raises ValueError, in words for the policy, past MAX_DEPTH
    or MAX_INTEGER.
    """
    if depth > MAX_DEPTH:
        raise ValueError("the arguments are nested too deeply")
    if type(value) is str:  # most of them
        return value
    if isinstance(value, Mapping):
        return {key: own_copy(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [own_copy(item, depth + 1) for item in value]
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError("a number in the arguments is too large")
    return value


def check_calculation(tool: str, arguments: Mapping[str, Json]) -> None:
    """Raises ValueError for a call of `calculate` that would hold the interpreter for hours, such
    as `9**9**9`.
    """
    if tool == "calculate" and _is_too_large(arguments.get("expression")):
        raise ValueError("the result is too large")


def _is_too_large(expression: object) -> bool:
    """True if the tool would meet a number of more than MAX_BITS."""
    if not isinstance(expression, str):
        return False
    try:
        _bit_length(ast.parse(expression.strip(), mode="eval").body)
    except (
        OverflowError,
        RecursionError,
        MemoryError,
    ):  # Python's parser calls deep nesting a lack of memory
        return True
    except (SyntaxError, ValueError):
        return False  # the tool says what is wrong
    return False


def _bit_length(node: ast.AST) -> int | None:
    """An upper bound of an integer's length in bits; None for other values. Raises OverflowError
    when it passes MAX_BITS on the way.
    """
    match node:
        case ast.Constant(value=int(value)):
            return value.bit_length()
        case ast.UnaryOp(operand=operand):
            return _bit_length(operand)
        case ast.BinOp(left=a, op=op, right=b):
            left, right = _bit_length(a), _bit_length(b)
            if left is None or right is None or isinstance(op, ast.Div):
                return None
            bits = left << min(right, 20) if isinstance(op, ast.Pow) else left + right + 1
            if bits > MAX_BITS:
                raise OverflowError
            return bits
    for child in ast.iter_child_nodes(node):
        _bit_length(child)
    return None


_LEAVES = frozenset({str, float, int, bool, type(None)})
"""Types whose values nothing can change."""


def copy_record(record: Any) -> Any:
    """A deep copy of dicts, lists and pydantic models; `model_copy(deep=True)` takes several times
    as long.

    The copy shares what cannot be changed. `untouched` lives on that.
    """
    if isinstance(record, dict):
        return {
            key: value if type(value) in _LEAVES else copy_record(value)
            for key, value in record.items()
        }
    if isinstance(record, list):
        return [value if type(value) in _LEAVES else copy_record(value) for value in record]
    if hasattr(record, "model_copy"):
        copied = record.model_copy()
        fields = vars(copied)
        for key, value in fields.items():
            if type(value) not in _LEAVES:
                fields[key] = copy_record(value)
        return copied
    return record


def untouched(copied: Any, record: Any) -> bool:
    """True if a copy by `copy_record` holds just what the record holds, down to the very strings
    and numbers.

    It is never true of records that differ. A copy in which a value was replaced by an equal one
    counts as touched.
    """
    if copied is record:
        return True
    kind = type(copied)
    if kind is not type(record):
        return False
    if kind is dict:
        return (
            len(copied) == len(record)
            and all(map(is_, copied, record))
            and _all_untouched(copied.values(), record.values())
        )
    if kind is list:
        return len(copied) == len(record) and _all_untouched(copied, record)
    if hasattr(copied, "model_copy"):
        return untouched(vars(copied), vars(record)) and untouched(
            copied.model_extra, record.model_extra
        )
    return False


def _all_untouched(copied: Iterable[Any], record: Iterable[Any]) -> bool:
    for value, before in zip(copied, record, strict=True):
        if value is not before and not untouched(value, before):
            return False
    return True

"""Checks of numbers, with one text for each."""

from sys import float_info
from typing import Any

from rollq.errors import ContractError

LARGEST_NUMBER = 2**53 - 1
"""The largest whole number that is allowed, because the ledger's scripts count in doubles."""


def is_number(value: Any) -> bool:
    """True if the value is a finite number, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= float_info.max


def is_whole(value: Any, at_least: int = 0, at_most: int = LARGEST_NUMBER) -> bool:
    """True if the value is a whole number within these bounds, and not a bool."""
    return type(value) is int and at_least <= value <= at_most


def whole_number(
    name: str,
    value: Any,
    at_least: int,
    at_most: int = LARGEST_NUMBER,
    error: type[ValueError] = ContractError,
) -> int:
    """The value. Raises `error`, which names it, for everything but a whole number within these
    bounds.
    """
    if not is_whole(value, at_least, at_most):
        kind = whole_kind(at_least, at_most)
        if type(value) is int and value > LARGEST_NUMBER:
            kind += " and below 2**53"
        raise error(f"{name} must be {kind}, not {value!r:.80}")
    return int(value)


def whole_kind(at_least: int, at_most: int = LARGEST_NUMBER) -> str:
    """Numbers within these bounds, in words."""
    kind = f"a whole number of at least {at_least}"
    return kind if at_most == LARGEST_NUMBER else f"{kind} and at most {at_most}"

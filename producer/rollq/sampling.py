"""Sampling parameters: SGLang's names, and the values that it takes.

They are checked when a job is made. Routers silently drop unknown names, so a typo would sample
with defaults. A value that the engine refuses would cost every sample a claim. Pure values,
standard library only.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rollq.numbers import is_number, is_whole

GRAMMARS = ("json_schema", "regex", "ebnf")
"""Parameters that constrain a turn to a grammar; a job may have at most one."""
OURS = {
    "max_new_tokens": "budget.max_new_tokens bounds a turn",
    "n": "the job's size says how many samples there are",
    "skip_special_tokens": "rollq reads ids",
    "no_stop_trim": "rollq reads ids",
}
"""Parameters that rollq sets itself, and why a job cannot."""
ANY_JSON = "$$ANY$$"
"""A schema in SGLang's own words."""
MAX_STOPS = 32
MAX_STOP_REGEX = 256
"""Longest stop_regex, in bytes."""

Check = Callable[[Any], bool]


def _within(low: float, high: float = float("inf"), *, above: bool = False) -> Check:
    """A check that a number is within bounds. With `above`, the lower bound itself is
    not allowed.
    """

    def check(value: Any) -> bool:
        if not is_number(value) or (above and value == low):
            return False
        return bool(low <= value <= high)

    return check


def _whole(low: int, high: int) -> Check:
    return partial(is_whole, at_least=low, at_most=high)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _list_of(check: Check, most: int = MAX_STOPS) -> Check:
    return lambda value: (
        isinstance(value, list | tuple) and len(value) <= most and all(map(check, value))
    )


def _texts(value: object) -> bool:
    return _text(value) or _list_of(_text)(value)


def _pattern(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    if len(value.encode("utf-8", "replace")) > MAX_STOP_REGEX:
        return False
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _schema(value: object) -> bool:
    """True if the value is JSON. The engine decides which schemas it has a grammar for."""
    if not isinstance(value, str) or not value:
        return False
    try:
        json.loads(value)
    except json.JSONDecodeError:
        return value == ANY_JSON
    except (ValueError, RecursionError):  # only too much for this reader
        return True
    return True


def _biases(value: object) -> bool:
    if not isinstance(value, Mapping) or not all(map(is_number, value.values())):
        return False
    return all(isinstance(id, str) and id.isascii() and id.isdigit() for id in value)


PARAMETERS: dict[str, tuple[Check, str]] = {
    "temperature": (_within(0), "a number of at least 0"),
    "top_p": (_within(0, 1, above=True), "a number above 0 and up to 1"),
    "top_k": (
        lambda value: _whole(-1, 2**31 - 1)(value) and value != 0,
        "a whole number of at least 1, or -1 for all",
    ),
    "min_p": (_within(0, 1), "a number from 0 to 1"),
    "frequency_penalty": (_within(-2, 2), "a number from -2 to 2"),
    "presence_penalty": (_within(-2, 2), "a number from -2 to 2"),
    "repetition_penalty": (_within(0, 2, above=True), "a number above 0 and up to 2"),
    "min_new_tokens": (_whole(0, 2**31 - 1), "a whole number of at least 0"),
    "stop": (_texts, f"a string, or up to {MAX_STOPS} of them, none empty"),
    "stop_token_ids": (_list_of(_whole(0, 2**31 - 1), 2**16), "a list of token ids"),
    "stop_regex": (
        lambda value: _pattern(value) or _list_of(_pattern)(value),
        f"a regular expression of up to {MAX_STOP_REGEX} bytes, or up to {MAX_STOPS} of them",
    ),
    "json_schema": (_schema, "a string of JSON"),
    "regex": (_text, "a regular expression"),  # in the engine's dialect; `re` knows a part of it
    "ebnf": (_text, "a grammar, as a string"),
    "ignore_eos": (lambda value: isinstance(value, bool), "true or false"),
    "logit_bias": (_biases, 'numbers by token id, {"17": -2.5}'),
    "sampling_seed": (_whole(0, 2**63 - 1), "a whole number of at least 0"),
}
"""Check of each parameter's value, and the values that it takes in words, by SGLang's name
(srt/sampling/sampling_params.py).
"""


def objection(sampling: Mapping[str, Any], max_new_tokens: int) -> str:
    """The reason for which the engine would refuse this in a turn of `max_new_tokens`; empty when
    it would not.
    """
    for name, value in sampling.items():
        if name in OURS:
            return f"sampling takes no {name}: {OURS[name]}"
        if name not in PARAMETERS:
            return f"sampling does not know {name}; it takes {', '.join(PARAMETERS)}"
        accepts, kind = PARAMETERS[name]
        if not accepts(value):
            return f"sampling: {name} must be {kind}, not {value!r:.100}"
    grammars = [name for name in GRAMMARS if name in sampling]
    if len(grammars) > 1:
        return f"sampling: a turn can be held to one of {' and '.join(grammars)}, not to several"
    fewest = sampling.get("min_new_tokens", 0)
    if fewest > max_new_tokens:
        return (
            f"sampling: min_new_tokens, {fewest}, is more than budget.max_new_tokens, "
            f"{max_new_tokens}"
        )
    return ""

"""The sampling parameters of a request, checked as SGLang checks them: types by its contract, values, grammars.

The invariant: what passes here can be generated.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollq_worker.replay_engine.errors import bad_body, bad_contract, bad_value, broken
from rollq_worker.replay_engine.grammars import CHECKS, refusal

DEFAULT_NEW_TOKENS = 128
MAX_STOPS = 32
MAX_STOP_REGEX = 256
"""Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The parameters that change what a replay engine says; the others are checked and have no effect."""

    max_new_tokens: int | None = DEFAULT_NEW_TOKENS
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    seed: int | None = None


Check = Callable[[Any], bool]


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: object) -> bool:
    return isinstance(value, str)


def are_texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(is_text, value)))


def are_ints(value: object) -> bool:
    return isinstance(value, list) and all(map(is_int, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def _is_anything(value: object) -> bool:
    return True


KINDS: dict[str, tuple[Check, str]] = {
    "max_new_tokens": (is_int, "i64"),
    "stop": (are_texts, "a value or an array of values for StringOrList"),
    "stop_token_ids": (are_ints, "i64"),
    "stop_regex": (are_texts, "a value or an array of values for StringOrList"),
    "temperature": (_is_number, "f64"),
    "top_p": (_is_number, "f64"),
    "top_k": (is_int, "i64"),
    "min_p": (_is_number, "f64"),
    "frequency_penalty": (_is_number, "f64"),
    "presence_penalty": (_is_number, "f64"),
    "repetition_penalty": (_is_number, "f64"),
    "min_new_tokens": (is_int, "i64"),
    "n": (is_int, "i64"),
    "json_schema": (is_text, "a string"),
    "regex": (is_text, "a string"),
    "ebnf": (is_text, "a string"),
    "structural_tag": (is_text, "a string"),
    "ignore_eos": (_is_bool, "a boolean"),
    "skip_special_tokens": (_is_bool, "a boolean"),
    "spaces_between_special_tokens": (_is_bool, "a boolean"),
    "no_stop_trim": (_is_bool, "a boolean"),
    "stream_interval": (is_int, "i64"),
    "logit_bias": (_is_map, "a map"),
    "sampling_seed": (is_int, "i64"),
    "custom_params": (_is_anything, "anything"),
    "beam_width": (is_int, "i64"),
    "watermark": (_is_map, "struct WatermarkRequestConfig"),
}
"""Every sampling parameter: what it must be, and how SGLang calls that."""

RANGES: dict[str, tuple[Check, str]] = {
    "beam_width": (lambda x: x >= 1, "must be at least 1"),
    "temperature": (lambda x: 0 <= x < math.inf, "must be a non-negative finite number"),
    "top_p": (lambda x: 0 < x <= 1, "must be in (0, 1]"),
    "min_p": (lambda x: 0 <= x <= 1, "must be in [0, 1]"),
    "top_k": (lambda x: x == -1 or x >= 1, "must be -1 (disable) or at least 1"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "must be in [-2, 2]"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "must be in [-2, 2]"),
    "repetition_penalty": (lambda x: 0 < x <= 2, "must be in (0, 2] (1.0 = no penalty)"),
    "min_new_tokens": (lambda x: x >= 0, "must be in [0, max_new_tokens]"),
    "max_new_tokens": (lambda x: x >= 0, "must be at least 0"),
    "sampling_seed": (lambda x: -(2**63) <= x < 2**63, "must be in [-2**63, 2**63 - 1]"),
}


def read_sampling(params: object, vocab: int) -> Sampling:
    """The parameters of one prompt, for a model with so many token ids. Raises HttpError."""
    if not isinstance(params, dict):
        raise bad_body("sampling_params", "Input should be a valid dictionary")
    _check_types(params)
    given = {name: value for name, value in params.items() if value is not None}
    for name, (check, message) in RANGES.items():
        if name in given and not check(given[name]):
            raise bad_value(f"{name} {message}, got {given[name]}.")
    longest, shortest = params.get("max_new_tokens", DEFAULT_NEW_TOKENS), given.get("min_new_tokens", 0)
    if longest is not None and shortest > longest:
        raise bad_value(f"min_new_tokens must be in [0, max_new_tokens({longest})], got {shortest}.")
    if given.get("n", 1) > 1 or given.get("beam_width", 1) > 1:
        raise bad_value("The replay engine samples one continuation a prompt: n and beam_width must be 1.")
    if "watermark" in given:
        raise bad_value("The replay engine has no watermarks.")
    _check_bias(given.get("logit_bias", {}), vocab)
    _check_grammar({name: given[name] for name in CHECKS if given.get(name)})
    return Sampling(
        max_new_tokens=longest,
        min_new_tokens=shortest,
        stop=_stops(given.get("stop")),
        stop_regex=_patterns(given.get("stop_regex")),
        stop_token_ids=frozenset(given.get("stop_token_ids", ())),
        ignore_eos=given.get("ignore_eos", False),
        skip_special_tokens=given.get("skip_special_tokens", True),
        no_stop_trim=given.get("no_stop_trim", False),
        seed=given.get("sampling_seed"),
    )


def _check_types(params: dict[str, Any]) -> None:
    for name, value in params.items():
        if name not in KINDS:
            raise bad_contract(f"unknown field `{name}`, expected one of {', '.join(f'`{kind}`' for kind in KINDS)}")
        if value is not None and not KINDS[name][0](value):
            raise bad_contract(f"invalid type: {shown(value)}, expected {KINDS[name][1]}")
    for bias in (params.get("logit_bias") or {}).values():
        if not _is_number(bias):
            raise bad_contract(f"invalid type: {shown(bias)}, expected f64")


def _check_bias(bias: dict[str, float], vocab: int) -> None:
    for token in bias:
        try:
            known = 0 <= int(token) < vocab
        except ValueError as e:
            raise bad_value(str(e)) from e
        if not known:
            raise bad_value(f"logit_bias must has keys in [0, {vocab - 1}], got {token}.")


def _check_grammar(given: dict[str, str]) -> None:
    """`given`: those that are not empty, which is as good as none."""
    if len(given) > 1:
        raise bad_value("Only one of json_schema, regex, ebnf, or structural_tag can be set.")
    for kind, grammar in given.items():
        if wrong := refusal(kind, grammar):
            raise bad_value(wrong)


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = _texts(value)
    if len(stops) > MAX_STOPS:
        raise bad_value(f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}")
    return stops


def _patterns(value: str | list[str] | None) -> tuple[str, ...]:
    patterns = _texts(value)
    if len(patterns) > MAX_STOPS:
        raise bad_value(f"at most {MAX_STOPS} stop_regex patterns are allowed, got {len(patterns)}")
    for pattern in patterns:
        if (size := len(pattern.encode("utf-8", "replace"))) > MAX_STOP_REGEX:
            raise bad_value(f"stop_regex is {size} bytes, over the {MAX_STOP_REGEX}-byte limit")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as e:
            raise broken() from e  # a real server does not expect it either
    return patterns


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def shown(value: object) -> str:
    """A value as SGLang's contract names it: `string "2"`, `integer `5``."""
    if isinstance(value, str):
        return f'string "{value}"'
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    return "map" if isinstance(value, dict) else "sequence"

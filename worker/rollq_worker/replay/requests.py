"""The body of POST /generate, checked as SGLang checks it: first types, then the sampling contract, then values.

The invariant: what passes here can be generated. It knows nothing of HTTP or of what will be said.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
import re
import uuid
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollq_worker.replay.errors import bad_body, bad_contract, bad_value

RESERVE = 6
"""Tokens of the context that a prompt may not use (SGLang's max_req_input_len)."""
DEFAULT_NEW_TOKENS = 128


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One prompt of a /generate call."""

    rid: str
    ids: array[int]
    sampling: Sampling
    max_new_tokens: int
    """What fits the context, when the request does not say."""
    return_logprob: bool = False
    logprob_start: int = -1
    """Score the prompt from this token on; -1: not at all."""
    text_in_logprobs: bool = False
    asked_about: tuple[int, ...] = ()
    """Ids whose logprob is wanted at every sampled position."""


Check = Callable[[Any], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_text, value)))


def _are_ints(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_int, value))


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


KINDS: dict[str, tuple[Check, str]] = {
    "max_new_tokens": (_is_int, "i64"),
    "stop": (_are_texts, "a value or an array for StringOrList"),
    "stop_token_ids": (_are_ints, "i64"),
    "stop_regex": (_are_texts, "a value or an array for StringOrList"),
    "temperature": (_is_number, "f64"),
    "top_p": (_is_number, "f64"),
    "top_k": (_is_int, "i64"),
    "min_p": (_is_number, "f64"),
    "frequency_penalty": (_is_number, "f64"),
    "presence_penalty": (_is_number, "f64"),
    "repetition_penalty": (_is_number, "f64"),
    "min_new_tokens": (_is_int, "i64"),
    "n": (_is_int, "i64"),
    "json_schema": (_is_text, "a string"),
    "regex": (_is_text, "a string"),
    "ebnf": (_is_text, "a string"),
    "structural_tag": (_is_text, "a string"),
    "ignore_eos": (_is_bool, "a boolean"),
    "skip_special_tokens": (_is_bool, "a boolean"),
    "spaces_between_special_tokens": (_is_bool, "a boolean"),
    "no_stop_trim": (_is_bool, "a boolean"),
    "stream_interval": (_is_int, "i64"),
    "logit_bias": (_is_map, "a map"),
    "sampling_seed": (_is_int, "i64"),
    "custom_params": (_is_map, "a map"),
}
"""Every sampling parameter: what it must be, and how SGLang calls that."""

RANGES: dict[str, tuple[Check, str]] = {
    "max_new_tokens": (lambda x: x >= 0, "must be at least 0"),
    "temperature": (lambda x: 0 <= x < math.inf, "must be a non-negative finite number"),
    "top_p": (lambda x: 0 < x <= 1, "must be in (0, 1]"),
    "top_k": (lambda x: x == -1 or x >= 1, "must be -1 (disable) or at least 1"),
    "min_p": (lambda x: 0 <= x <= 1, "must be in [0, 1]"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "must be in [-2, 2]"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "must be in [-2, 2]"),
    "repetition_penalty": (lambda x: 0 < x <= 2, "must be in (0, 2]"),
    "min_new_tokens": (lambda x: x >= 0, "must be at least 0"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What fits: tokens of context, and the size of the vocabulary."""

    context: int
    vocab: int

    @property
    def prompt(self) -> int:
        """Prompts of that many tokens or more are refused."""
        return self.context - RESERVE


def read_requests(body: object, limits: Limits, encode: Callable[[str], array[int]]) -> list[GenerateRequest]:
    """The prompts of one call; a single one unless `input_ids` or `text` is a list of prompts. Raises HttpError."""
    if not isinstance(body, dict):
        raise bad_body("", "Input should be a dictionary or an instance of GenerateReqInput")
    prompts, batch = _prompts(body, encode)
    params = body.get("sampling_params")
    if params is not None and not isinstance(params, dict | list):
        raise bad_body("sampling_params", "Input should be a valid dictionary")
    each = params if isinstance(params, list) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise bad_value("The specified sampling_params length mismatch with the batch_size for batch processing.")
    rids = _rids(body.get("rid"), len(prompts), batch)
    return [_one(body, ids, rid, one or {}, limits) for ids, rid, one in zip(prompts, rids, each, strict=True)]


def is_batch(body: Mapping[str, Any]) -> bool:
    """Whether the reply is a list."""
    given = body.get("input_ids") if body.get("input_ids") is not None else body.get("text")
    return isinstance(given, list) and bool(given) and isinstance(given[0], list | str)


def _prompts(body: Mapping[str, Any], encode: Callable[[str], array[int]]) -> tuple[list[Any], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if ids is not None:
        if not isinstance(ids, list):
            raise bad_body("input_ids", f"Value error, must be list or null; got {type(ids).__name__}")
        nested = bool(ids) and isinstance(ids[0], list)
        prompts = ids if nested else [ids]
        if not all(map(_are_ints, prompts)):
            raise bad_body("input_ids", "Value error, elements must be int or list")
        return prompts, nested
    if text is None:
        raise bad_value("Either text, input_ids or input_embeds should be provided.")
    if not _are_texts(text):
        raise bad_body("text", "Input should be a valid string")
    texts = [text] if isinstance(text, str) else text
    return [encode(one) for one in texts], not isinstance(text, str)


def _rids(rid: object, count: int, batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if batch else [rid]
    if not (isinstance(rid, list) and all(map(_is_text, rid))):
        raise bad_body("rid", "Input should be a valid string")
    if len(rid) != count:
        raise bad_value("The specified rids length mismatch with the batch_size for batch processing.")
    if len(set(rid)) != count:
        raise bad_value(f"Duplicate request IDs detected within the request: {rid}")
    return rid


def _one(body: Mapping[str, Any], ids: Any, rid: str, params: Any, limits: Limits) -> GenerateRequest:
    for name in ("return_logprob", "return_text_in_logprobs", "stream"):
        if not isinstance(body.get(name) or False, bool):
            raise bad_contract(f"invalid type: {_shown(body[name])}, expected a value or an array for BoolOrList")
    start = body.get("logprob_start_len")
    if not _is_int(-1 if start is None else start):
        raise bad_contract(f"invalid type: {_shown(start)}, expected a value or an array of values for I64OrList")
    if body.get("stream"):
        raise bad_value("The replay engine does not stream.")
    asked = body.get("token_ids_logprob") or []
    if not _are_ints(asked):
        raise bad_body("token_ids_logprob", "Input should be a valid list")
    if strangers := [id for id in asked if not 0 <= id < limits.vocab]:
        wrong = f"token_ids_logprob contains out-of-vocabulary token id {strangers[0]}"
        raise bad_value(f"{wrong}; valid range is [0, {limits.vocab}).")
    sampling = _sampling(params)
    room = _fit(ids, params.get("max_new_tokens", DEFAULT_NEW_TOKENS), "max_new_tokens" in params, limits)
    if start is not None and start > len(ids):
        raise bad_value(f"req.logprob_start_len={start} is higher than the number of input tokens {len(ids)}.")
    return GenerateRequest(
        rid=rid,
        ids=array("I", ids),
        sampling=sampling,
        max_new_tokens=room,
        return_logprob=bool(body.get("return_logprob")),
        logprob_start=-1 if start is None else start,
        text_in_logprobs=bool(body.get("return_text_in_logprobs")),
        asked_about=tuple(asked),
    )


def _sampling(params: object) -> Sampling:
    if not isinstance(params, dict):
        raise bad_body("sampling_params", "Input should be a valid dictionary")
    for name, value in params.items():
        if name not in KINDS:
            raise bad_contract(f"unknown field `{name}`, expected one of {', '.join(f'`{kind}`' for kind in KINDS)}")
        if value is not None and not KINDS[name][0](value):
            raise bad_contract(f"invalid type: {_shown(value)}, expected {KINDS[name][1]}")
    for name, (check, message) in RANGES.items():
        if params.get(name) is not None and not check(params[name]):
            raise bad_value(f"{name} {message}, got {params[name]}.")
    if params.get("n") not in (None, 1):
        raise bad_value("The replay engine samples one continuation a prompt: n must be 1.")
    longest, shortest = params.get("max_new_tokens", DEFAULT_NEW_TOKENS), params.get("min_new_tokens") or 0
    if longest is not None and shortest > longest:
        raise bad_value(f"min_new_tokens must be in [0, max_new_tokens({longest})], got {shortest}.")
    return Sampling(
        max_new_tokens=longest,
        min_new_tokens=shortest,
        stop=_texts(params.get("stop")),
        stop_regex=_patterns(_texts(params.get("stop_regex"))),
        stop_token_ids=frozenset(params.get("stop_token_ids") or ()),
        ignore_eos=bool(params.get("ignore_eos")),
        skip_special_tokens=params.get("skip_special_tokens") is not False,
        no_stop_trim=bool(params.get("no_stop_trim")),
        seed=params.get("sampling_seed"),
    )


def _fit(ids: Any, asked: int | None, given: bool, limits: Limits) -> int:
    """How many tokens will be sampled at most. An id outside the vocabulary kills a real server; here it is refused."""
    if not len(ids):
        raise bad_value("input_ids cannot be empty.")
    for worst in (min(ids), max(ids)):
        if not 0 <= worst < limits.vocab:
            raise bad_value(f"Token id {worst} is outside the vocabulary (a real server would have died of it).")
    count, context = len(ids), limits.context
    if count >= context:
        raise bad_value(f"The input ({count} tokens) is longer than the model's context length ({context} tokens).")
    if given and asked is not None and count + asked > context:
        raise bad_value(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
            f"total of {count + asked} tokens: {count} tokens from the input messages and {asked} tokens for the "
            "completion."
        )
    if count >= limits.prompt:
        allowed = f"exceeds the maximum allowed length ({limits.prompt} tokens)"
        raise bad_value(
            f"Input length ({count} tokens) {allowed}. Use a shorter input or enable --allow-auto-truncate."
        )
    room = context - count - 2  # the scheduler keeps two tokens to itself
    return room if asked is None else min(asked, room)


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as e:
            raise bad_value(f"Invalid stop_regex {pattern!r}: {e}") from e
    return patterns


def _shown(value: object) -> str:
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

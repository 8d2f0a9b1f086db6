"""The body of POST /generate: one prompt and its sampling parameters, checked as SGLang checks them.

The invariant: what passes here can be generated. Nothing that would change the reply is dropped in silence, except a
grammar, which has no effect. It knows nothing of HTTP or of what will be said.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
import re
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollq.sampling import MAX_STOP_REGEX, MAX_STOPS
from rollq_worker.replay_engine.http_bodies import (
    HttpError,
    are_ints,
    are_texts,
    bad_body,
    bad_type,
    bad_value,
    is_bool,
    is_int,
    is_map,
    is_number,
    is_text,
)

DEFAULT_NEW_TOKENS = 128
PROMPT_RESERVE = 6
"""Tokens of the context that a prompt may not use (SGLang's max_req_input_len)."""
SCHEDULER_RESERVE = 2
"""Tokens of the context that SGLang's scheduler never fills."""

Check = Callable[[Any], bool]

BODY_FIELDS: dict[str, tuple[Check, str]] = {
    "input_ids": (are_ints, "Input should be the token ids of one prompt"),
    "text": (is_text, "Input should be a valid string, one prompt"),
    "rid": (is_text, "Input should be a valid string"),
    "sampling_params": (is_map, "Input should be a valid dictionary"),
    "token_ids_logprob": (are_ints, "Input should be a valid list"),
    "extra_key": (is_text, "Input should be a valid string"),
}
"""For each field, the check of its value, and SGLang's words for a wrong value."""
TYPED_FIELDS: dict[str, tuple[Check, str]] = {
    "return_logprob": (is_bool, "a value or an array of values for BoolOrList"),
    "logprob_start_len": (is_int, "a value or an array of values for Int64OrList"),
    "top_logprobs_num": (is_int, "a value or an array of values for Int64OrList"),
    "return_text_in_logprobs": (is_bool, "a boolean"),
    "return_prompt_token_ids": (is_bool, "a boolean"),
    "return_routed_experts": (is_bool, "a boolean"),
    "routed_experts_start_len": (is_int, "i64"),
}
"""Fields that SGLang checks like sampling parameters, each with its check and SGLang's word for its type."""
PARAMETERS: dict[str, tuple[Check, str]] = {
    "max_new_tokens": (is_int, "i64"),
    "stop": (are_texts, "a value or an array of values for StringOrList"),
    "stop_token_ids": (are_ints, "i64"),
    "stop_regex": (are_texts, "a value or an array of values for StringOrList"),
    "temperature": (is_number, "f64"),
    "top_p": (is_number, "f64"),
    "top_k": (is_int, "i64"),
    "min_p": (is_number, "f64"),
    "frequency_penalty": (is_number, "f64"),
    "presence_penalty": (is_number, "f64"),
    "repetition_penalty": (is_number, "f64"),
    "min_new_tokens": (is_int, "i64"),
    "json_schema": (is_text, "a string"),
    "regex": (is_text, "a string"),
    "ebnf": (is_text, "a string"),
    "ignore_eos": (is_bool, "a boolean"),
    "skip_special_tokens": (is_bool, "a boolean"),
    "no_stop_trim": (is_bool, "a boolean"),
    "logit_bias": (lambda bias: is_map(bias) and all(map(is_number, bias.values())), "a map to f64"),
    "sampling_seed": (is_int, "i64"),
}
"""The sampling parameters that a job can carry or the engine client adds."""
RANGES: dict[str, tuple[Check, str]] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """The parameters that change what a replay engine says. The others are checked and have no effect."""

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
    rid: str
    ids: array[int]
    """array('I'): the prompt."""
    sampling: SamplingParameters
    max_new_tokens: int
    """Tokens to sample; at most what is left of the context."""
    return_logprob: bool
    logprob_start: int
    """The prompt is scored from this token on; -1: not at all."""
    text_in_logprobs: bool
    scored_ids: Sequence[int]
    """Ids whose logprob is wanted at every sampled position."""
    top_logprobs: int
    """The number of best tokens wanted at every scored position."""
    return_prompt_ids: bool
    routed_from: int | None
    """Routed experts are wanted of the tokens from this one on; None: of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The context length in tokens, and the number of token ids."""

    context: int
    vocab: int

    @property
    def prompt(self) -> int:
        """Prompts of this many tokens or more are refused."""
        return self.context - PROMPT_RESERVE


def read_request(body: Mapping[str, Any], size: ModelSize, encode: Callable[[str], array[int]]) -> GenerateRequest:
    """The request that `body` asks for. Raises HttpError."""
    _check_fields(body)
    given = {name: value for name, value in body.items() if value is not None}
    params = given.get("sampling_params", {})
    sampling = _read_sampling(params, size.vocab)
    ids = _prompt(given, size, encode)
    request = GenerateRequest(
        rid=given.get("rid", uuid.uuid4().hex),
        ids=ids,
        sampling=sampling,
        max_new_tokens=_max_new_tokens(len(ids), params, size),
        return_logprob=given.get("return_logprob", False),
        logprob_start=given.get("logprob_start_len", -1),
        text_in_logprobs=given.get("return_text_in_logprobs", False),
        scored_ids=given.get("token_ids_logprob", ()),
        top_logprobs=max(0, given.get("top_logprobs_num", 0)),
        return_prompt_ids=given.get("return_prompt_token_ids", False),
        routed_from=given.get("routed_experts_start_len", 0) if given.get("return_routed_experts") else None,
    )
    _check_scoring(request, size)
    _check_routed_from(request)
    return request


def _check_fields(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in BODY_FIELDS:
            check, expected = BODY_FIELDS[name]
            if value is not None and not check(value):
                raise bad_body(name, expected)
        elif name in TYPED_FIELDS:
            _check_type(value, *TYPED_FIELDS[name])
        elif value:
            raise bad_value(f"The replay engine does not take `{name}`.")


def _check_type(value: object, check: Check, expected: str) -> None:
    if value is not None and not check(value):
        raise bad_type(f"invalid type: {value!r}, expected {expected}")


def _read_sampling(params: Mapping[str, Any], vocab: int) -> SamplingParameters:
    for name, value in params.items():
        if name not in PARAMETERS:
            expected = ", ".join(f"`{known}`" for known in PARAMETERS)
            raise bad_type(f"unknown field `{name}`, expected one of {expected}")
        _check_type(value, *PARAMETERS[name])
    given = {name: value for name, value in params.items() if value is not None}
    for name, (check, message) in RANGES.items():
        if name in given and not check(given[name]):
            raise bad_value(f"{name} {message}, got {given[name]}.")
    longest, shortest = params.get("max_new_tokens", DEFAULT_NEW_TOKENS), given.get("min_new_tokens", 0)
    if longest is not None and shortest > longest:
        raise bad_value(f"min_new_tokens must be in [0, max_new_tokens({longest})], got {shortest}.")
    _check_bias(given.get("logit_bias", {}), vocab)
    return SamplingParameters(
        min_new_tokens=shortest,
        stop=_texts(given.get("stop", ()), "stop strings"),
        stop_regex=_patterns(given.get("stop_regex", ())),
        stop_token_ids=frozenset(given.get("stop_token_ids", ())),
        ignore_eos=given.get("ignore_eos", False),
        skip_special_tokens=given.get("skip_special_tokens", True),
        no_stop_trim=given.get("no_stop_trim", False),
        seed=given.get("sampling_seed"),
    )


def _check_bias(bias: Mapping[str, float], vocab: int) -> None:
    for token in bias:
        try:
            known = 0 <= int(token) < vocab
        except ValueError as e:
            raise bad_value(str(e)) from e
        if not known:
            raise bad_value(f"logit_bias must has keys in [0, {vocab - 1}], got {token}.")


def _texts(value: str | Sequence[str], what: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value)
    if len(texts) > MAX_STOPS:
        raise bad_value(f"at most {MAX_STOPS} {what} are allowed, got {len(texts)}")
    return texts


def _patterns(value: str | Sequence[str]) -> tuple[str, ...]:
    patterns = _texts(value, "stop_regex patterns")
    for pattern in patterns:
        if (size := len(pattern.encode("utf-8", "replace"))) > MAX_STOP_REGEX:
            raise bad_value(f"stop_regex is {size} bytes, over the {MAX_STOP_REGEX}-byte limit")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as e:
            raise HttpError(500, "Internal Server Error") from e  # a real server does not expect it either
    return patterns


def _prompt(given: Mapping[str, Any], size: ModelSize, encode: Callable[[str], array[int]]) -> array[int]:
    """The prompt's ids. An id outside the vocabulary kills a real server; this one refuses it."""
    if "input_ids" not in given and "text" not in given:
        raise bad_value("Either text, input_ids or input_embeds should be provided.")
    ids = given["input_ids"] if "input_ids" in given else encode(given["text"])
    if not ids:
        raise bad_value("input_ids cannot be empty.")
    for worst in (min(ids), max(ids)):
        if not 0 <= worst < size.vocab:
            raise bad_value(f"Token id {worst} is outside the vocabulary (a real server would have died of it).")
    return array("I", ids)


def _max_new_tokens(count: int, params: Mapping[str, Any], size: ModelSize) -> int:
    asked, context = params.get("max_new_tokens", DEFAULT_NEW_TOKENS), size.context
    if count >= context:
        raise bad_value(f"The input ({count} tokens) is longer than the model's context length ({context} tokens).")
    if "max_new_tokens" in params and asked is not None and count + asked > context:
        raise bad_value(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
            f"total of {count + asked} tokens: {count} tokens from the input messages and {asked} tokens for the "
            "completion."
        )
    if count >= size.prompt:
        allowed = f"exceeds the maximum allowed length ({size.prompt} tokens)"
        raise bad_value(
            f"Input length ({count} tokens) {allowed}. Use a shorter input or enable --allow-auto-truncate."
        )
    room = context - count - SCHEDULER_RESERVE
    return room if asked is None else min(asked, room)


def _check_routed_from(request: GenerateRequest) -> None:
    start, count = request.routed_from, len(request.ids)
    name = "recv_req.routed_experts_start_len"
    if start is not None and start > count:
        raise bad_value(
            f"{name}={start} is higher than the number of input tokens len(req.origin_input_ids)={count}. Please use a"
            " smaller routed_experts_start_len."
        )
    if start is not None and start < 0:
        raise bad_value(f"{name}={start} is lower than 0. Please use a non-negative routed_experts_start_len.")


def _check_scoring(request: GenerateRequest, size: ModelSize) -> None:
    start, count = request.logprob_start, len(request.ids)
    if request.return_logprob and start > count:
        raise bad_value(f"req.logprob_start_len={start} is higher than the number of input tokens {count}.")
    if request.return_logprob and (start < -1 or request.top_logprobs > size.vocab):
        wrong = f"logprob_start_len={start} or top_logprobs_num={request.top_logprobs} is out of range"
        raise bad_value(f"{wrong} (a real server would have died of it).")
    for id in request.scored_ids:
        if not 0 <= id < size.vocab:
            wrong = f"token_ids_logprob contains out-of-vocabulary token id {id}"
            raise bad_value(f"{wrong}; valid range is [0, {size.vocab}).")

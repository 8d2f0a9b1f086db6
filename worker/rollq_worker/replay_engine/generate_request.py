"""The body of POST /generate, checked as SGLang checks it: first types, then the sampling contract, then values.

The invariant: what passes here can be generated. It knows nothing of HTTP or of what will be said.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import uuid
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollq_worker.replay_engine.errors import bad_body, bad_contract, bad_value, broken
from rollq_worker.replay_engine.features import refuse_features
from rollq_worker.replay_engine.sampling_parameters import (
    DEFAULT_NEW_TOKENS,
    Sampling,
    are_ints,
    are_texts,
    is_int,
    is_text,
    read_sampling,
    shown,
)

RESERVE = 6
"""Tokens of the context that a prompt may not use (SGLang's max_req_input_len)."""
EACH = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob")
"""What may be a list with an entry for each prompt of a batch."""


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
    top_logprobs: int = 0
    """So many of the best tokens are wanted at every scored position."""
    show_prompt: bool = False
    """The reply repeats the prompt's ids."""


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
    if isinstance(params, list) and not batch:
        raise broken()
    each = params if isinstance(params, list) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise bad_value("The specified sampling_params length mismatch with the batch_size for batch processing.")
    rids = _rids(body.get("rid"), len(prompts), batch)
    bodies = _split(body, len(prompts)) if batch else [body]
    refuse_features(body)
    return [
        _one(mine, ids, rid, {} if one is None else one, limits)
        for mine, ids, rid, one in zip(bodies, prompts, rids, each, strict=True)
    ]


def is_batch(body: Mapping[str, Any]) -> bool:
    """Whether the reply is a list."""
    given = body.get("input_ids") if body.get("input_ids") is not None else body.get("text")
    return isinstance(given, list) and bool(given) and isinstance(given[0], list | str)


def _split(body: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """One body for each prompt of a batch."""
    lists = {name: body[name] for name in EACH if isinstance(body.get(name), list) and body[name]}
    if lists.get("token_ids_logprob") and not isinstance(lists["token_ids_logprob"][0], list):
        del lists["token_ids_logprob"]  # the same ids for every prompt
    for name, values in lists.items():
        if len(values) != count:
            raise bad_value(f"The length of {name} should be equal to the batch size.")
    return [{**body, **{name: values[at] for name, values in lists.items()}} for at in range(count)]


def _prompts(body: Mapping[str, Any], encode: Callable[[str], array[int]]) -> tuple[list[Any], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if ids is not None:
        if not isinstance(ids, list):
            raise bad_body("input_ids", f"Value error, must be list or null; got {type(ids).__name__}")
        nested = bool(ids) and isinstance(ids[0], list)
        prompts = ids if nested else [ids]
        if not all(map(are_ints, prompts)):
            raise bad_body("input_ids", "Value error, elements must be int or list")
        return prompts, nested
    if text is None:
        raise bad_value("Either text, input_ids or input_embeds should be provided.")
    if not are_texts(text):
        raise bad_body("text", "Input should be a valid string")
    texts = [text] if isinstance(text, str) else text
    return [encode(one) for one in texts], not isinstance(text, str)


def _rids(rid: object, count: int, batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if batch else [rid]
    if not (isinstance(rid, list) and all(map(is_text, rid))):
        raise bad_body("rid", "Input should be a valid string")
    if not batch:
        raise broken()
    if len(rid) != count:
        raise bad_value("The specified rids length mismatch with the batch_size for batch processing.")
    if len(set(rid)) != count:
        raise bad_value(f"Duplicate request IDs detected within the request: {rid}")
    return rid


def _one(body: Mapping[str, Any], ids: Any, rid: str, params: Any, limits: Limits) -> GenerateRequest:
    for name in ("return_logprob", "return_text_in_logprobs", "return_prompt_token_ids", "stream"):
        if not isinstance(body.get(name) or False, bool):
            many = "a value or an array of values for BoolOrList" if name in EACH else "a boolean"
            raise bad_contract(f"invalid type: {shown(body[name])}, expected {many}")
    if body.get("stream"):
        raise bad_value("The replay engine does not stream.")
    start, top, asked = _scored(body, limits)
    sampling = read_sampling(params, limits.vocab)
    room = _fit(ids, params.get("max_new_tokens", DEFAULT_NEW_TOKENS), "max_new_tokens" in params, limits)
    scores = bool(body.get("return_logprob"))
    if scores and start > len(ids):
        raise bad_value(f"req.logprob_start_len={start} is higher than the number of input tokens {len(ids)}.")
    return GenerateRequest(
        rid=rid,
        ids=array("I", ids),
        sampling=sampling,
        max_new_tokens=room,
        return_logprob=scores,
        logprob_start=start,
        text_in_logprobs=bool(body.get("return_text_in_logprobs")),
        asked_about=tuple(asked),
        top_logprobs=top,
        show_prompt=bool(body.get("return_prompt_token_ids")),
    )


def _scored(body: Mapping[str, Any], limits: Limits) -> tuple[int, int, list[int]]:
    """Where scoring begins, how many of the best tokens it shows, and which tokens besides."""
    numbers = {}
    for name, default in (("logprob_start_len", -1), ("top_logprobs_num", 0)):
        value = default if body.get(name) is None else body[name]
        if not is_int(value):
            raise bad_contract(f"invalid type: {shown(value)}, expected a value or an array of values for Int64OrList")
        numbers[name] = value
    start, top = numbers["logprob_start_len"], numbers["top_logprobs_num"]
    if body.get("return_logprob") and (start < -1 or top > limits.vocab):
        wrong = f"logprob_start_len={start} or top_logprobs_num={top} is out of range"
        raise bad_value(f"{wrong} (a real server would have died of it).")
    asked = body.get("token_ids_logprob") or []
    if not are_ints(asked):
        raise bad_body("token_ids_logprob", "Input should be a valid list")
    if strangers := [id for id in asked if not 0 <= id < limits.vocab]:
        wrong = f"token_ids_logprob contains out-of-vocabulary token id {strangers[0]}"
        raise bad_value(f"{wrong}; valid range is [0, {limits.vocab}).")
    return start, max(top, 0), asked


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

"""The body of POST /generate: one prompt and its sampling parameters.

The invariant: what passes here can be generated, and nothing that would change the reply is dropped
in silence, except a grammar and `stop_regex`, which have no effect. Values of sampling parameters
are checked as those of jobs are.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollq.sampling import PARAMETERS
from rollq_worker.replay_engine.http_bodies import bad_body, bad_type, bad_value

FIELDS = {
    "input_ids": list,
    "text": str,
    "rid": str,
    "sampling_params": dict,
    "return_logprob": bool,
    "logprob_start_len": int,
    "top_logprobs_num": int,
    "extra_key": str,
}
"""The fields that it takes, each with the type of its value. `extra_key`, which keeps cached
prefixes apart, has no effect.
"""
ADDED_BY_ROUTERS = frozenset(
    {"model", "log_metrics", "bootstrap_host", "bootstrap_port", "bootstrap_room"}
)
"""Fields that sglang-router and smg add; the last three for a pair of prefill and decode server.
The reply is the same.
"""
PARAMETERS_OF_REQUESTS = {"max_new_tokens": int, "skip_special_tokens": bool}
"""Sampling parameters that no job has, and that the engine client adds. `max_new_tokens` may also
be null.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    rid: str
    ids: array[int]
    """array('I'): the prompt."""
    sampling: Mapping[str, Any]
    max_new_tokens: int
    """Tokens to sample; at most the rest of the context."""
    return_logprob: bool
    logprob_start: int
    """The prompt is scored from this token on; -1: not at all."""
    top_logprobs: int
    """The number of best tokens wanted at every scored position."""

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings."""
        stop = self.sampling.get("stop", ())
        return (stop,) if isinstance(stop, str) else stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The context length in tokens, and the number of token ids."""

    context: int
    vocab: int

    @property
    def prompt(self) -> int:
        """Prompts of this many tokens or more are refused."""
        return self.context - 6


def read_request(
    body: Mapping[str, Any], size: ModelSize, encode: Callable[[str], array[int]]
) -> GenerateRequest:
    """The request that `body` asks for. Raises HttpError."""
    for name, value in body.items():
        if name not in FIELDS:
            if value and name not in ADDED_BY_ROUTERS:
                raise bad_value(f"The replay engine does not take `{name}`.")
        elif type(value) is not FIELDS[name]:
            raise bad_body(name, f"Input should be a valid {FIELDS[name].__name__}, of one prompt")
    sampling = body.get("sampling_params", {})
    _check_sampling(sampling)
    ids = _prompt(body, size, encode)
    request = GenerateRequest(
        rid=body.get("rid", uuid.uuid4().hex),
        ids=ids,
        sampling=sampling,
        max_new_tokens=_max_new_tokens(len(ids), sampling, size),
        return_logprob=body.get("return_logprob", False),
        logprob_start=body.get("logprob_start_len", -1),
        top_logprobs=body.get("top_logprobs_num", 0),
    )
    _check_scoring(request, size)
    return request


def _check_sampling(sampling: Mapping[str, Any]) -> None:
    for name, value in sampling.items():
        if name in PARAMETERS_OF_REQUESTS:
            if type(value) is not PARAMETERS_OF_REQUESTS[name] and (name, value) != (
                "max_new_tokens",
                None,
            ):
                raise bad_type(
                    f"invalid type: {value!r}, expected {PARAMETERS_OF_REQUESTS[name].__name__}"
                )
        elif name not in PARAMETERS:
            expected = ", ".join(f"`{name}`" for name in (*PARAMETERS_OF_REQUESTS, *PARAMETERS))
            raise bad_type(f"unknown field `{name}`, expected one of {expected}")
        elif not PARAMETERS[name][0](value):
            raise bad_value(f"{name} must be {PARAMETERS[name][1]}, got {value!r}.")


def _prompt(
    body: Mapping[str, Any], size: ModelSize, encode: Callable[[str], array[int]]
) -> array[int]:
    """The prompt's ids. An id outside the vocabulary kills a real server; this one refuses it."""
    if "input_ids" in body:
        ids = body["input_ids"]
    else:
        ids = encode(body.get("text", ""))
    if not ids:
        raise bad_value(
            "Either text or input_ids should be provided, and input_ids cannot be empty."
        )
    if not all(type(id) is int for id in ids):
        raise bad_body("input_ids", "Input should be the token ids of one prompt")
    for worst in (min(ids), max(ids)):
        if not 0 <= worst < size.vocab:
            raise bad_value(
                f"Token id {worst} is outside the vocabulary (a real server would have died of it)."
            )
    return array("I", ids)


def _max_new_tokens(count: int, sampling: Mapping[str, Any], size: ModelSize) -> int:
    context = size.context
    limit = sampling.get("max_new_tokens", 128)
    wanted: int = context if limit is None else limit
    if wanted < 0 or wanted < sampling.get("min_new_tokens", 0):
        raise bad_value(
            f"max_new_tokens must be at least 0, and at least min_new_tokens, got {wanted}."
        )
    if count >= context:
        raise bad_value(
            f"The input ({count} tokens) is longer than the model's context length "
            f"({context} tokens)."
        )
    if sampling.get("max_new_tokens") is not None and count + wanted > context:
        raise bad_value(
            f"Requested token count exceeds the model's maximum context length of {context} "
            f"tokens. You requested a total of {count + wanted} tokens: {count} tokens from the "
            f"input messages and {wanted} tokens for the completion."
        )
    if count >= size.prompt:
        allowed = f"exceeds the maximum allowed length ({size.prompt} tokens)"
        raise bad_value(
            f"Input length ({count} tokens) {allowed}. Use a shorter input or enable "
            "--allow-auto-truncate."
        )
    return min(wanted, context - count - 2)  # SGLang's scheduler never fills the last two


def _check_scoring(request: GenerateRequest, size: ModelSize) -> None:
    start = request.logprob_start
    count = len(request.ids)
    if request.return_logprob and start > count:
        raise bad_value(
            f"req.logprob_start_len={start} is higher than the number of input tokens {count}."
        )
    if request.return_logprob and (start < -1 or request.top_logprobs > size.vocab):
        wrong = (
            f"logprob_start_len={start} or top_logprobs_num={request.top_logprobs} is out of range"
        )
        raise bad_value(f"{wrong} (a real server would have died of it).")

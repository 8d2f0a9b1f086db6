"""Finds where a planned turn ends: at its length, a stop token or a stop string, as SGLang does it.

The invariant: the stop token is part of the ids and never of the text. One on the last place that
the length allows ends the turn all the same.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Set
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

from rollq_worker.replay_engine.generate_request import GenerateRequest
from rollq_worker.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Completion:
    ids: array[int]
    finish: dict[str, Any]
    """SGLang's finish_reason."""
    text: str | None = None
    """The text, when a stop string has cut it."""


def cut_at_stop_token(
    plan: array[int],
    filler: array[int],
    request: GenerateRequest,
    eos_ids: Set[int],
) -> Completion:
    """`plan` up to its first stop token, and no longer than the request wants. Where stop tokens
    are ignored, `filler` follows the plan.
    """
    ids = array("I")
    longest = request.max_new_tokens
    sampling = request.sampling
    stop_ids: Set[int] = frozenset()
    if not sampling.get("ignore_eos"):
        stop_ids = eos_ids | set(sampling.get("stop_token_ids", ()))
    for token in chain(plan, cycle(filler)):
        if len(ids) >= longest:
            break
        stop = token in stop_ids
        if stop and len(ids) < sampling.get("min_new_tokens", 0):
            continue
        ids.append(token)
        if stop:
            return Completion(ids, {"type": "stop", "matched": token})
    return Completion(ids, {"type": "length", "length": len(ids)})


def cut_at_stop_string(
    completion: Completion, request: GenerateRequest, tokenizer: Tokenizer
) -> Completion:
    """Ends the completion with the token that completes the first stop string."""
    stops = request.stops
    text = tokenizer.decode(completion.ids) if stops else ""
    if not any(stop in text for stop in stops):
        return completion
    for count in range(1, len(completion.ids) + 1):
        text = tokenizer.decode(completion.ids[:count])
        for stop in stops:
            if stop in text:
                finish = {"type": "stop", "matched": stop}
                return Completion(completion.ids[:count], finish, text.partition(stop)[0])
    return completion


def visible_text(completion: Completion, request: GenerateRequest, tokenizer: Tokenizer) -> str:
    """The reply's text: without the stop token."""
    if completion.text is not None:
        return completion.text
    stopped = isinstance(completion.finish.get("matched"), int)
    ids = completion.ids[:-1] if stopped else completion.ids
    return tokenizer.decode(ids, request.sampling.get("skip_special_tokens", True))

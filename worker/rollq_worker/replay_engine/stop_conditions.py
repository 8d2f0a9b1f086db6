"""Finds where a planned turn ends: at its length, a stop token or a stop string, as SGLang does it.

The invariant: the stop token is part of the ids and never of the text. A turn that reaches its length has none.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import re
from array import array
from collections.abc import Set
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

from rollq_worker.replay_engine.generate_request import SamplingParameters
from rollq_worker.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Completion:
    ids: array[int]
    finish: dict[str, Any]
    """SGLang's finish_reason."""
    text: str | None = None
    """The text, when a stop string has cut it."""


def cut_at_stop_token(
    plan: array[int], filler: array[int], sampling: SamplingParameters, longest: int, eos_ids: Set[int]
) -> Completion:
    """`plan` up to its first stop token, and at most `longest` tokens. Where stop tokens are ignored, `filler` follows
    the plan."""
    ids = array("I")
    stop_ids = eos_ids | sampling.stop_token_ids
    for token in chain(plan, cycle(filler)):
        if len(ids) >= longest:
            break
        stop = token in stop_ids and not sampling.ignore_eos
        if stop and len(ids) < sampling.min_new_tokens:
            continue
        ids.append(token)
        if stop and len(ids) < longest:  # length is looked at first
            return Completion(ids, {"type": "stop", "matched": token})
    return Completion(ids, {"type": "length", "length": len(ids)})


def cut_at_stop_string(whole: Completion, sampling: SamplingParameters, tokenizer: Tokenizer) -> Completion:
    """End the completion with the token that completes the first stop string or pattern."""
    patterns = [(stop, re.compile(re.escape(stop)), not sampling.no_stop_trim) for stop in sampling.stop]
    patterns += [(stop, re.compile(stop), False) for stop in sampling.stop_regex]
    text = tokenizer.decode(whole.ids) if patterns else ""
    if not any(pattern.search(text) for _, pattern, _ in patterns):
        return whole
    for count in range(1, len(whole.ids) + 1):
        text = tokenizer.decode(whole.ids[:count])
        for stop, pattern, trim in patterns:
            if found := pattern.search(text):
                visible = text[: found.start()] if trim else text
                return Completion(whole.ids[:count], {"type": "stop", "matched": stop}, visible)
    return whole


def visible_text(completion: Completion, sampling: SamplingParameters, tokenizer: Tokenizer) -> str:
    """The reply's text: without the stop token, unless the request wants it."""
    if completion.text is not None:
        return completion.text
    ids = completion.ids
    if isinstance(completion.finish.get("matched"), int) and not sampling.no_stop_trim:
        ids = ids[:-1]
    return tokenizer.decode(ids, sampling.skip_special_tokens)

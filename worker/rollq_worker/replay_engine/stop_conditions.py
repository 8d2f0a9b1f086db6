"""What of a planned turn is sampled: cut by length, stop tokens and stop strings, as SGLang does it.

The invariant: the stop token is part of the ids and never of the text; a generation that reaches its length has none.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import re
from array import array
from collections.abc import Set
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

from rollq_worker.replay_engine.sampling_parameters import Sampling
from rollq_worker.tokens.tokenizer import Tokenizer

Finish = dict[str, Any]
"""SGLang's finish_reason."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A whole generation, before anybody aborts it."""

    ids: array[int]
    finish: Finish
    text: str | None = None
    """Set where a stop string has cut it."""


def sample(plan: array[int], filler: array[int], sampling: Sampling, longest: int, ends: Set[int]) -> Sample:
    """`plan` up to its first stop token; `filler`, again and again, where that is ignored. At most `longest` tokens."""
    ids = array("I")
    stops = ends | sampling.stop_token_ids
    for token in chain(plan, cycle(filler)):
        if len(ids) >= longest:
            break
        stop = token in stops and not sampling.ignore_eos
        if stop and len(ids) < sampling.min_new_tokens:
            continue
        ids.append(token)
        if stop and len(ids) < longest:  # length is looked at first
            return Sample(ids, {"type": "stop", "matched": token})
    return Sample(ids, {"type": "length", "length": len(ids)})


def cut_strings(whole: Sample, sampling: Sampling, tokenizer: Tokenizer) -> Sample:
    """End it with the token that completes the first stop string or pattern."""
    patterns = [(stop, re.compile(re.escape(stop)), True) for stop in sampling.stop]
    patterns += [(stop, re.compile(stop), False) for stop in sampling.stop_regex]
    if not patterns:
        return whole
    text = tokenizer.decode(whole.ids)
    if not any(pattern.search(text) for _, pattern, _ in patterns):
        return whole
    for count in range(1, len(whole.ids) + 1):
        text = tokenizer.decode(whole.ids[:count])
        for stop, pattern, trim in patterns:
            if found := pattern.search(text):
                shown = text[: found.start()] if trim and not sampling.no_stop_trim else text
                return Sample(whole.ids[:count], {"type": "stop", "matched": stop}, shown)
    return whole


def shown(result: Sample, sampling: Sampling, tokenizer: Tokenizer) -> str:
    """The reply's text: without the stop token, unless it is asked for."""
    if result.text is not None:
        return result.text
    ids = result.ids
    if isinstance(result.finish.get("matched"), int) and not sampling.no_stop_trim:
        ids = ids[:-1]
    return tokenizer.decode(ids, sampling.skip_special_tokens)

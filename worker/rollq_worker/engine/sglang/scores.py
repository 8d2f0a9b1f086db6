"""Reads the logprobs of a prompt's tokens from the `meta_info` of SGLang's `/generate`."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from typing import Any

from rollq_worker.engine.exchange.replies import finite
from rollq_worker.protocols import Scores, Scoring


def read_scores(meta: dict[str, Any], ids: array[int], scoring: Scoring) -> Scores:
    """The scores of `ids[scoring.start + 1:]`. Raises TypeError, LookupError, ValueError,
    OverflowError.
    """
    if "input_token_logprobs" not in meta:
        raise LookupError("there are no input_token_logprobs (a router drops what asks for them)")
    entries = meta["input_token_logprobs"]
    scored = ids[scoring.start :].tolist()
    if [entry[1] for entry in entries] != scored:
        raise ValueError(f"the {len(entries)} logprobs are not those of the {len(scored)} ids sent")
    logprobs = finite(entry[0] for entry in entries[1:])
    tops = meta.get("input_top_logprobs") if scoring.top_k else None
    if not tops:
        return Scores(logprobs)
    if len(tops) != len(entries):
        raise ValueError(f"{len(tops)} lists of likeliest tokens for {len(entries)} tokens")
    return Scores(logprobs, *_likeliest(tops[1:]))


def _likeliest(tops: list[Any]) -> tuple[list[array[int]], list[array[float]]]:
    """The ids and the logprobs in lists of entries."""
    ids = [array("I", [entry[1] for entry in top]) for top in tops]
    return ids, [finite(entry[0] for entry in top) for top in tops]

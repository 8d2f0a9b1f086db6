"""Reads the logprobs of a prompt's tokens from a reply of vLLM's `/inference/v1/generate`."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from typing import Any

from rollq_worker.engine.exchange.replies import finite
from rollq_worker.protocols import Scores, Scoring


def read_scores(reply: dict[str, Any], ids: array[int], scoring: Scoring) -> Scores:
    """The scores of `ids[scoring.start + 1:]`. Raises TypeError, LookupError, ValueError,
    OverflowError.
    """
    first = scoring.start + 1
    rows = reply["prompt_logprobs"]
    if len(rows) != len(ids):
        raise ValueError(f"{len(rows)} rows of logprobs for {len(ids)} tokens")
    logprobs = finite(
        row[str(id)]["logprob"] for id, row in zip(ids[first:], rows[first:], strict=True)
    )
    # A row also has the token itself, wherever it ranks.
    tops = [_falling(row)[: scoring.top_k] for row in rows[first:] if scoring.top_k]
    return Scores(
        logprobs,
        [array("I", [id for _, id in top]) for top in tops],
        [finite(logprob for logprob, _ in top) for top in tops],
    )


def _falling(row: dict[str, Any]) -> list[tuple[float, int]]:
    pairs = ((entry["logprob"], int(id)) for id, entry in row.items())
    return sorted(pairs, reverse=True)

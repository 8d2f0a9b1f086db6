"""Reads the body of a 200 from vLLM's `/inference/v1/generate` strictly: into a `Generated`, or an
exception that names the next step. It knows nothing of connections or retries.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from operator import itemgetter
from typing import Any

from rollq.events import Finish
from rollq_worker.engine.exchange.replies import (
    RequestFailed,
    check_ids,
    checked_logprobs,
    clip,
    ids_of,
    nothing_sampled,
    parsed,
    scores_of,
    tiled_versions,
)
from rollq_worker.engine.vllm.scores import read_scores
from rollq_worker.protocols import Generated, SampleRequest

_LOGPROB, _ID = itemgetter("logprob"), itemgetter("token_id")
"""Getters for the parts of an entry of logprobs.content."""


def read_reply(body: bytes, request: SampleRequest, *, rid: str, vocabulary: int) -> Generated:
    """The body of a 200, for the request, which was sent as `rid`. Ids from `vocabulary` on belong
    to no model. A request aborted while it was queued has no ids and finish ABORT.

    Raises RequestFailed.
    """
    reply, choice, finish, ids = _parts(body)
    answered = str(reply.get("request_id", rid))
    if not answered.endswith(rid):
        raise RequestFailed(f"this answers another request: {clip(answered)}")
    if not ids:
        if finish is not Finish.ABORT:
            raise RequestFailed(f"no token was sampled, but the finish reason is {finish.value}")
        return nothing_sampled()
    check_ids(ids, request.max_new_tokens, vocabulary)
    return Generated(
        ids=ids,
        logprobs=_logprobs(choice, ids),
        versions=tiled_versions(choice.get("weight_versions"), "default", len(ids)),
        finish=finish,
        cached_tokens=_cached_tokens(reply.get("usage"), len(request.ids)),
        scores=scores_of(read_scores, reply, request),
    )


def _parts(body: bytes) -> tuple[dict[str, Any], dict[str, Any], Finish, array[int]]:
    """The reply, its only choice, its finish reason and its ids. Raises RequestFailed."""
    try:
        reply = parsed(body)
        [choice] = reply["choices"]
        return reply, choice, Finish(choice["finish_reason"]), ids_of(choice["token_ids"] or [])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise RequestFailed(f"not a reply of vLLM ({type(e).__name__}: {e}): {clip(body)}") from e


def _cached_tokens(usage: Any, prompt: int) -> int:
    """Raises RequestFailed for a prompt of another length."""
    if not isinstance(usage, dict):
        return 0
    seen = usage.get("prompt_tokens", prompt)
    if seen != prompt:
        raise RequestFailed(
            f"the engine saw {clip(seen)} prompt tokens of {prompt} (does it truncate, or count an "
            "image's tokens otherwise?)"
        )
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if type(cached) is int and 0 <= cached <= prompt else 0


def _logprobs(choice: dict[str, Any], ids: array[int]) -> array[float]:
    try:
        entries = choice["logprobs"]["content"]
        return checked_logprobs(map(_LOGPROB, entries), list(map(_ID, entries)), ids)
    except (TypeError, LookupError, OverflowError) as e:
        raise RequestFailed(f"unreadable logprobs: {type(e).__name__}: {e}") from e

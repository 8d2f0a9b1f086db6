"""vLLM's `/inference/v1/generate`: writes the body of a request, and reads the body of a 200
strictly, into a `Generated` or an exception that names the next step.

Job options have SGLang's names (`rollq.sampling`); vLLM's are those of `vllm.SamplingParams`. It
knows nothing of connections or retries.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
from array import array
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from rollq.events import Finish
from rollq.job import Json
from rollq.sampling import ANY_JSON
from rollq_worker.engine.exchange.prompts import as_json
from rollq_worker.engine.exchange.replies import (
    RequestFailed,
    check_ids,
    checked_logprobs,
    clip,
    finite,
    ids_of,
    nothing_sampled,
    parsed,
    scores_of,
    tiled_versions,
)
from rollq_worker.engine.exchange.server import GenerationRequest
from rollq_worker.protocols import Generated, SampleRequest, Scores, Scoring

RENAMED = {"sampling_seed": "seed"}
"""vLLM's name of a parameter, by SGLang's."""
GRAMMARS = {"regex": "regex", "ebnf": "grammar"}
"""vLLM's structured output, by SGLang's parameter."""
_LOGPROB, _ID = itemgetter("logprob"), itemgetter("token_id")
"""Getters for the parts of an entry of logprobs.content."""


def write_request(request: GenerationRequest) -> bytes:
    """The body of this request, of at most `turn.max_new_tokens` tokens."""
    turn = request.turn
    own_stops = turn.sampling.get("stop_token_ids") or ()
    # SGLang's ignore_eos passes over these, too
    stops = (
        () if turn.sampling.get("ignore_eos") else dict.fromkeys((*request.stop_ids, *own_stops))
    )
    params: dict[str, Any] = {
        **_renamed(turn.sampling),
        "max_tokens": turn.max_new_tokens,
        "stop_token_ids": list(stops),
        "logprobs": 0,  # of the sampled token alone
        "skip_special_tokens": False,
    }
    if fewest := turn.sampling.get("min_new_tokens"):
        params["min_tokens"] = min(fewest, turn.max_new_tokens)
    if turn.scoring is not None:
        params["prompt_logprobs"] = turn.scoring.top_k  # of all the prompt: it knows no start
    fields: dict[str, Any] = {"request_id": request.rid, "sampling_params": params}
    if turn.images is not None:
        fields["content_parts"] = [
            {"type": "image_url", "url": image.data_url} for image in turn.images.images
        ]
    if request.adapter is not None:
        fields["model"] = request.adapter.served
    return b"".join((b'{"token_ids":[', *request.sent.pieces, b"],", as_json(fields)[1:]))


def _renamed(sampling: Mapping[str, Json]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, value in sampling.items():
        if name == "json_schema":
            is_any = value == ANY_JSON
            params["structured_outputs"] = (
                {"json_object": True} if is_any else {"json": json.loads(value)}
            )
        elif name in GRAMMARS:
            params["structured_outputs"] = {GRAMMARS[name]: value}
        elif name not in ("min_new_tokens", "stop_token_ids"):
            params[RENAMED.get(name, name)] = value
    return params


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


def read_scores(reply: dict[str, Any], ids: array[int], scoring: Scoring) -> Scores:
    """The scores of `ids[scoring.start + 1:]` in a reply. Raises TypeError, LookupError,
    ValueError, OverflowError.
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

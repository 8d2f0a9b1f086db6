"""SGLang's `/generate`: writes the body of a request, and reads the body of a 200 strictly, into a
`Generated` or an exception that names the next step.

A prompt with all placeholders of an image is never answered (0.5.23). The count of prompt tokens is
that of the whole prompt, so an image processor that counts otherwise than ours is noticed. It knows
nothing of connections or retries.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from operator import itemgetter
from typing import Any

from rollq.errors import JobFailure
from rollq.events import Finish
from rollq_worker.engine.exchange.prompts import as_json
from rollq_worker.engine.exchange.replies import (
    EngineAborted,
    EngineUnavailable,
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
from rollq_worker.engine.sglang.routed_experts import FIELD, read_routed_experts
from rollq_worker.protocols import Generated, SampleRequest, Scores, Scoring
from rollq_worker.text.whole_text import whole_characters

_LOGPROB, _ID = itemgetter(0), itemgetter(1)
"""Getters for the parts of an entry of output_token_logprobs."""


def write_request(request: GenerationRequest) -> bytes:
    """The body of this request, of at most `turn.max_new_tokens` tokens."""
    turn = request.turn
    own_stops = turn.sampling.get("stop_token_ids") or ()
    stops = list(dict.fromkeys((*request.stop_ids, *own_stops)))
    params: dict[str, Any] = {
        **turn.sampling,
        "max_new_tokens": turn.max_new_tokens,
        "stop_token_ids": stops,
        "skip_special_tokens": False,  # the text is only for people, who get all of it
    }
    if turn.sampling.get("min_new_tokens"):
        # A server refuses a minimum above max_new_tokens, which is small for the rest of an
        # interrupted turn.
        params["min_new_tokens"] = min(turn.sampling["min_new_tokens"], turn.max_new_tokens)
    fields: dict[str, Any] = {"rid": request.rid, "sampling_params": params, "return_logprob": True}
    if turn.routing is not None:
        fields |= {"return_routed_experts": True, "routed_experts_start_len": turn.routing.start}
    if turn.scoring is not None:
        fields["logprob_start_len"] = turn.scoring.start
        if turn.scoring.top_k:
            fields["top_logprobs_num"] = turn.scoring.top_k
    if turn.images is not None:
        fields["image_data"] = [image.data_url for image in turn.images.images]
    if request.adapter is not None:
        fields["lora_path"] = request.adapter.served
    return b"".join((b'{"input_ids":[', *request.sent.pieces, b"],", as_json(fields)[1:]))


def read_reply(body: bytes, request: SampleRequest, *, rid: str, vocabulary: int) -> Generated:
    """The body of a 200 from `/generate`, for the request, which was sent as `rid`.

    Ids from `vocabulary` on belong to no model. A request aborted while it was queued has no ids
    and finish ABORT. So has one that was aborted without the routed experts that it asks for,
    because its turn could not be replayed.

    Raises RequestFailed and, if the engine aborted it for a reason of its own, EngineUnavailable or
    JobFailure; for routed experts the errors of `read_routed_experts`.
    """
    reply, meta, finish, ids = _parts(body)
    if meta.get("id", rid) != rid:
        raise RequestFailed(f"this answers another request: {clip(meta['id'])}")
    if not ids:
        if finish is not Finish.ABORT:
            raise RequestFailed(f"no token was sampled, but the finish reason is {finish.value}")
        _raise_abort_reason(meta["finish_reason"], request.key)
        return nothing_sampled()
    prompt = len(request.ids)
    _check_counts(meta, prompt, len(ids))
    check_ids(ids, request.max_new_tokens, vocabulary)
    experts = None
    if request.routing is not None:
        if finish is Finish.ABORT and FIELD not in meta:
            return nothing_sampled()
        experts = read_routed_experts(meta, request.routing, request.key, prompt + len(ids))
    text = reply.get("text")
    cached = meta.get("cached_tokens")
    return Generated(
        ids=ids,
        logprobs=_logprobs(meta, ids),
        # older servers only report the last version
        versions=tiled_versions(
            meta.get("weight_versions"), clip(meta.get("weight_version", "default")), len(ids)
        ),
        finish=finish,
        text=whole_characters(text) if isinstance(text, str) else "",
        cached_tokens=cached if type(cached) is int and 0 <= cached <= prompt else 0,
        routed_experts=experts,
        scores=scores_of(read_scores, meta, request),
    )


def _parts(body: bytes) -> tuple[dict[str, Any], dict[str, Any], Finish, array[int]]:
    """The reply, its `meta_info`, its finish reason and its ids. Raises RequestFailed."""
    try:
        reply = parsed(body)
        meta = reply["meta_info"]
        finish = Finish(meta["finish_reason"]["type"])
        return reply, meta, finish, ids_of(reply["output_ids"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise RequestFailed(
            f"not a reply of /generate ({type(e).__name__}: {e}): {clip(body)}"
        ) from e


def _raise_abort_reason(reason: dict[str, Any], key: str) -> None:
    """Raises for an abort that the engine decided on, which has a status. SGLang gives 503 to a
    full queue and a queue timeout.
    """
    status = reason.get("status_code")
    kind = reason.get("err_type")
    if status is None and not kind:
        return
    message = (
        f"the engine aborted the request: {clip(reason.get('message'))} (status {clip(status)}, "
        f"{clip(kind)})"
    )
    if isinstance(status, int) and 400 <= status < 500:
        raise JobFailure(f"{key}: {message}")
    raise (EngineUnavailable if status == 503 else EngineAborted)(message)


def _check_counts(meta: dict[str, Any], prompt: int, sampled: int) -> None:
    """Raises RequestFailed where the reply contradicts its request or itself."""
    prompt_tokens = meta.get("prompt_tokens", prompt)
    if prompt_tokens != prompt:
        raise RequestFailed(
            f"the engine saw {clip(prompt_tokens)} prompt tokens of {prompt} (does it truncate, "
            "or count an image's tokens otherwise?)"
        )
    completion_tokens = meta.get("completion_tokens", sampled)
    if completion_tokens != sampled:
        raise RequestFailed(
            f"{sampled} output ids, but completion_tokens is {clip(completion_tokens)}"
        )


def _logprobs(meta: dict[str, Any], ids: array[int]) -> array[float]:
    entries = meta.get("output_token_logprobs")
    if not isinstance(entries, list):
        raise RequestFailed("the reply has no output_token_logprobs")
    try:
        return checked_logprobs(map(_LOGPROB, entries), list(map(_ID, entries)), ids)
    except (TypeError, LookupError, OverflowError) as e:
        raise RequestFailed(f"unreadable output_token_logprobs: {type(e).__name__}: {e}") from e


def read_scores(meta: dict[str, Any], ids: array[int], scoring: Scoring) -> Scores:
    """The scores of `ids[scoring.start + 1:]` in a reply's `meta_info`. Raises TypeError,
    LookupError, ValueError, OverflowError.
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

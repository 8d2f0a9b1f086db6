"""The body of a request to an SGLang server's `/generate`.

A prompt with all placeholders of an image is never answered (0.5.23). The count of prompt tokens is
that of the whole prompt, so an image processor that counts otherwise than ours is noticed.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from collections.abc import Mapping, Sequence
from typing import Any

from rollq.job import Json
from rollq_worker.engine.exchange.prompts import Prompt, as_json
from rollq_worker.protocols import Adapter, PromptImages, Routing, Scoring


def write_request(
    prompt: Prompt,
    sampling: Mapping[str, Json],
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    rid: str,
    routing: Routing | None = None,
    images: PromptImages | None = None,
    scoring: Scoring | None = None,
    adapter: Adapter | None = None,
) -> bytes:
    """The body of a request for at most `max_new_tokens` tokens after the prompt.

    `stop_ids` end it besides the job's own. `routing` asks for routed experts, `scoring` for
    the prompt's logprobs. With `images`, the prompt has one placeholder for each.
    """
    own_stops = sampling.get("stop_token_ids") or ()
    stops = list(dict.fromkeys((*stop_ids, *own_stops)))
    params: dict[str, Any] = {
        **sampling,
        "max_new_tokens": max_new_tokens,
        "stop_token_ids": stops,
        "skip_special_tokens": False,  # the text is only for people, who get all of it
    }
    if sampling.get("min_new_tokens"):
        # A server refuses a minimum above max_new_tokens, which is small for the rest of an
        # interrupted turn.
        params["min_new_tokens"] = min(sampling["min_new_tokens"], max_new_tokens)
    fields: dict[str, Any] = {"rid": rid, "sampling_params": params, "return_logprob": True}
    if routing is not None:
        fields |= {"return_routed_experts": True, "routed_experts_start_len": routing.start}
    if scoring is not None:
        fields["logprob_start_len"] = scoring.start
        if scoring.top_k:
            fields["top_logprobs_num"] = scoring.top_k
    if images is not None:
        fields["image_data"] = [image.data_url for image in images.images]
    if adapter is not None:
        fields["lora_path"] = adapter.served
    return b"".join((b'{"input_ids":[', *prompt.pieces, b"],", as_json(fields)[1:]))

"""The body of a request to an SGLang server's `/generate`.

A prompt with all placeholders of an image is never answered (0.5.23). The count of prompt tokens is
that of the whole prompt, so an image processor that counts otherwise than ours is noticed.
"""

from typing import Any

from rollq_worker.engine.exchange.prompts import as_json
from rollq_worker.engine.exchange.server import GenerationRequest


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

"""The body of a request to vLLM's `/inference/v1/generate`.

Job options have SGLang's names (`rollq.sampling`); vLLM's are those of `vllm.SamplingParams`.
"""

import json
from collections.abc import Mapping
from typing import Any

from rollq.job import Json
from rollq.sampling import ANY_JSON
from rollq_worker.engine.exchange.prompts import as_json
from rollq_worker.engine.exchange.server import GenerationRequest

RENAMED = {"sampling_seed": "seed"}
"""vLLM's name of a parameter, by SGLang's."""
GRAMMARS = {"regex": "regex", "ebnf": "grammar"}
"""vLLM's structured output, by SGLang's parameter."""


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

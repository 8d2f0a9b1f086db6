"""The body of a request to vLLM's `/inference/v1/generate`.

Job options have SGLang's names (`rollq.sampling`); vLLM's are those of `vllm.SamplingParams`.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.job import Json
from rollq.sampling import ANY_JSON
from rollq_worker.engine.exchange.prompts import Prompt, as_json
from rollq_worker.protocols import Adapter, PromptImages, Scoring

RENAMED = {"sampling_seed": "seed"}
"""vLLM's name of a parameter, by SGLang's."""
GRAMMARS = {"regex": "regex", "ebnf": "grammar"}
"""vLLM's structured output, by SGLang's parameter."""


def write_request(
    prompt: Prompt,
    sampling: Mapping[str, Json],
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    rid: str,
    images: PromptImages | None = None,
    scoring: Scoring | None = None,
    adapter: Adapter | None = None,
) -> bytes:
    """The body of a request for at most `max_new_tokens` tokens after the prompt.

    `stop_ids` end it besides the job's own. `scoring` asks for the prompt's logprobs. With
    `images`, the prompt has one placeholder for each.
    """
    own_stops = sampling.get("stop_token_ids") or ()
    # SGLang's ignore_eos passes over these, too
    stops = () if sampling.get("ignore_eos") else dict.fromkeys((*stop_ids, *own_stops))
    params: dict[str, Any] = {
        **_renamed(sampling),
        "max_tokens": max_new_tokens,
        "stop_token_ids": list(stops),
        "logprobs": 0,  # of the sampled token alone
        "skip_special_tokens": False,
    }
    if fewest := sampling.get("min_new_tokens"):
        params["min_tokens"] = min(fewest, max_new_tokens)
    if scoring is not None:
        params["prompt_logprobs"] = scoring.top_k  # of all the prompt: it knows no start
    fields: dict[str, Any] = {"request_id": rid, "sampling_params": params}
    if images is not None:
        fields["content_parts"] = [
            {"type": "image_url", "url": image.data_url} for image in images.images
        ]
    if adapter is not None:
        fields["model"] = adapter.served
    return b"".join((b'{"token_ids":[', *prompt.pieces, b"],", as_json(fields)[1:]))


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

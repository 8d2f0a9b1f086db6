"""A scripted engine that can be asked for scores."""

from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from tests.rollq_worker.engine.engine_servers import ScriptedEngine, scripted_engine

TURNS = count()


def scoring_engine() -> AbstractContextManager[ScriptedEngine]:
    """Of weights v1, for up to 89 tokens. Its answers to /generate are the test's."""
    return scripted_engine(
        model_info=(200, {"weight_version": "v1"}), server_info=(200, {"max_req_input_len": 90})
    )


def scores(body: dict[str, Any], **meta: Any) -> dict[str, Any]:
    start = body["logprob_start_len"]
    entries = [
        [None if i == start else -0.5, body["input_ids"][i], None]
        for i in range(start, len(body["input_ids"]))
    ]
    return {
        "output_ids": [],
        "meta_info": {"weight_version": "v1", "input_token_logprobs": entries, **meta},
    }


def decoded(body: dict[str, Any], **meta: Any) -> dict[str, Any]:
    entries = [[-0.5, id, None] for id in body["token_ids_logprob"]]
    return {"meta_info": {"weight_version": "v1", "output_token_ids_logprobs": [entries], **meta}}


def sampled(body: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """As many tokens as were asked for, with the logprobs that `scores` gives. No two turns begin
    alike.
    """
    ids = [100 + next(TURNS) % 1000] + [7] * (body["sampling_params"]["max_new_tokens"] - 1)
    entries = [[-0.5, id, None] for id in ids]
    said = {
        "weight_version": "v1",
        "output_token_logprobs": entries,
        "finish_reason": {"type": "stop", "matched": 7},
    }
    return {"output_ids": ids, "meta_info": {**said, **meta}}


def scored_or_sampled(body: dict[str, Any]) -> dict[str, Any]:
    return scores(body) if "logprob_start_len" in body else sampled(body)

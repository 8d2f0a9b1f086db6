"""A scripted engine that can be asked for scores."""

from contextlib import AbstractContextManager
from typing import Any

from tests.rollq_worker.engine.engine_servers import ScriptedEngine, scripted_engine


def scoring_engine() -> AbstractContextManager[ScriptedEngine]:
    """Of weights v1, for up to 89 tokens. Its answers to /generate are the test's."""
    return scripted_engine(model_info=(200, {"weight_version": "v1"}), server_info=(200, {"max_req_input_len": 90}))


def scores(body: dict[str, Any], **meta: Any) -> dict[str, Any]:
    start = body["logprob_start_len"]
    entries = [[None if i == start else -0.5, body["input_ids"][i], None] for i in range(start, len(body["input_ids"]))]
    return {"output_ids": [], "meta_info": {"weight_version": "v1", "input_token_logprobs": entries, **meta}}


def next_reply(*entries: Any, version: str = "v1") -> tuple[int, Any]:
    return 200, {"output_ids": [3], "meta_info": {"weight_version": version, "output_token_ids_logprobs": [entries]}}

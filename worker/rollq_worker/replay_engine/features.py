"""What a request may ask of a server that was started for it, or that has a session: here it is refused, as there.

The invariant: nothing that is asked for and would change a reply is silently left out.
"""

from collections.abc import Mapping
from typing import Any

from rollq_worker.replay_engine.errors import bad_body, bad_value, broken
from rollq_worker.replay_engine.sampling_parameters import is_int, is_text

SESSION = {"id", "rid", "offset", "replace", "drop_previous_output"}
"""What the parameters of a session may be."""


def refuse_features(body: Mapping[str, Any]) -> None:
    """Raises HttpError for what this engine was not started for."""
    _refuse_rank(body)
    _refuse_lora(body.get("lora_path"))
    _refuse_session(body.get("session_id"), body.get("session_params"))
    _refuse_processor(body.get("custom_logit_processor"))
    if body.get("return_hidden_states"):
        raise bad_value("The server is not configured to return hidden states.")
    if body.get("max_thinking_tokens") is not None:
        raise bad_value("max_thinking_tokens requires the server to be launched with --enable-strict-thinking")
    if body.get("return_sampling_mask"):
        raise bad_value("The replay engine has no sampling masks.")
    if body.get("sampling_logprobs_mode") is not None:
        raise bad_value("sampling_logprobs_mode can only be set when return_sampling_mask=true.")


def _refuse_rank(body: Mapping[str, Any]) -> None:
    for name in ("routed_dp_rank", "data_parallel_rank"):
        rank = body.get(name)
        if rank is None:
            continue
        if not is_int(rank):
            raise bad_body(name, "Input should be a valid integer")
        if rank != 0:
            raise bad_value(f"routed_dp_rank={rank} out of range [0, 1)")


def _refuse_lora(path: object) -> None:
    if path is not None and not _are_names(path):
        raise bad_body("lora_path", "Input should be a valid string")
    if isinstance(path, list):
        path = next(filter(None, path), "None") if path else None
    if path:
        raise bad_value(
            f"LoRA adapter '{path}' was requested, but LoRA is not enabled. Please launch the server with --enable-lora"
            " flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
        )


def _refuse_session(name: object, params: object) -> None:
    if name is not None and not is_text(name):
        raise bad_body("session_id", "Input should be a valid string")
    if params is None:
        return
    if not isinstance(params, dict):
        raise bad_body("session_params", "Input should be a valid dictionary")
    if name is not None:
        raise bad_value("session_id and session_params cannot both be set.")
    if not params.keys() <= SESSION:
        raise broken()
    if params.get("id") is not None:
        raise bad_value(f"Invalid request: session id {params['id']} does not exist")


def _refuse_processor(processor: object) -> None:
    if processor is not None and not _are_names(processor):
        raise bad_body("custom_logit_processor", "Input should be a valid string")
    if processor:
        raise bad_value(
            "The server is not configured to enable custom logit processor. Please set"
            " `--enable-custom-logit-processor` to enable this feature."
        )


def _are_names(value: object) -> bool:
    return is_text(value) or (isinstance(value, list) and all(one is None or is_text(one) for one in value))

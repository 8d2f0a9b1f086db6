"""The part of verl 0.9.1's agent loop that rollq uses. Made for rollq's example and tests."""

from types import SimpleNamespace
from typing import Any


class AgentLoopOutput(SimpleNamespace):
    """verl's is a pydantic model with these fields: prompt_ids, response_ids, response_mask,
    response_logprobs, reward_score, num_turns, metrics, routed_experts, extra_fields.
    """


class AgentLoopBase:
    """verl's makes a tokenizer's builder as well, which rollq does not use."""

    def __init__(
        self,
        trainer_config: Any,
        server_manager: Any,
        tokenizer: Any,
        processor: Any,
        dataset_cls: Any,
        data_config: Any,
        hf_model_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout

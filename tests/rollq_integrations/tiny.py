"""TRL's real trainers with a tiny model on the CPU."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

from rollq import Client, Job
from rollq_integrations.trl import RolloutFunc, rollq_reward, task_prompts
from rollq_worker.tokens.tokenizer import BUNDLED

SIZE = 3
"""Samples of a group. Each step trains two groups."""
ON_CPU: Mapping[str, Any] = {
    "learning_rate": 1e-2,
    "save_steps": 2,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
}
"""Settings of every trainer here."""


def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(BUNDLED)


def model() -> Qwen2ForCausalLM:
    """The same one each time."""
    set_seed(1)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    return Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(tokenizer()), tie_word_embeddings=True, **sizes, **heads)
    )


class RecordingTrainer(GRPOTrainer):
    """Notes what the loss is computed from."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.inputs: list[dict[str, torch.Tensor]] = []
        self.logprobs: list[torch.Tensor] = []

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self.inputs.append(
            {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        )
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.logprobs.append(found[0].detach())
        return found


def trainer(
    rollouts: RolloutFunc,
    folder: Path,
    policy: PreTrainedModel | None = None,
    reward: Callable[..., Any] = rollq_reward,
    **settings: Any,
) -> RecordingTrainer:
    """Two groups of SIZE a step, in an order that the seed decides."""
    args: dict[str, Any] = {
        "max_steps": 4,
        "num_generations": SIZE,
        "per_device_train_batch_size": 2 * SIZE,
        **ON_CPU,
        "seed": 7,
    }
    return RecordingTrainer(
        policy or model(),
        reward,
        args=GRPOConfig(str(folder), **args | settings),
        train_dataset=task_prompts(rollouts.job, range(8)),
        processing_class=tokenizer(),
        rollout_func=rollouts,
    )


def rollouts(client: Client, **changes: Any) -> RolloutFunc:
    how = {name: changes.pop(name) for name in ("refill", "fleet", "weights") if name in changes}
    return RolloutFunc(client, job=Job(env="shop", task=0, **changes), **how)


def prompts(*tasks: int) -> list[Any]:
    """As the trainer passes them: siblings adjacent."""
    rows = task_prompts(Job(env="shop", task=0), tasks)
    return [row["prompt"] for row in rows for _ in range(SIZE)]


def weights(training: RecordingTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}

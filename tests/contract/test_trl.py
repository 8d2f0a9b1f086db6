"""TRL trains on episodes of a real SGLang server: its logprobs of the sampled tokens are the engine's at each step."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from rollq import Client, Job
from rollq.job import Budget
from rollq.trainers.fleet import Fleet
from rollq.trainers.trl import RolloutFunc, task_prompts
from tests.contract.conftest import CACHE, Server
from tests.e2e.stack import Stack

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
STEPS = 3


class ComparingTrainer(GRPOTrainer):
    """Notes how far its own logprobs are from the engine's: as they are, and moved by one token."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gaps: list[tuple[float, float]] = []

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        length = inputs["completion_ids"].size(1)
        with torch.no_grad():
            own = self._get_per_token_logps_and_entropies(model, ids, attention, length)[0]
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        gap = (own - inputs["sampling_per_token_logps"])[mask].abs()
        moved = (own.roll(1, dims=1) - inputs["sampling_per_token_logps"])[mask].abs()
        self.gaps.append((gap.max().item(), moved.mean().item()))
        return super()._compute_loss(model, inputs)


def odd(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs between samples, because no sample of a random model solves a task."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def test_the_trainers_logprobs_are_the_engines_also_after_weights_were_synced(
    sglang_server: Server, redis_url: str, tmp_path: Path
) -> None:
    path = Path(os.environ.get("ROLLQ_SGLANG_MODEL", CACHE / "tiny"))
    stack, fleet = Stack(tmp_path, redis_url), Fleet([sglang_server.url])
    try:
        stack.worker(4, "--tokenizer", str(path), engine_url=sglang_server.url)
        with Client(redis_url, run="r") as client:
            budget = Budget(max_turns=2, max_new_tokens=24)
            job = Job(env="shop", task=0, budget=budget, sampling={"temperature": 1.0})
            rollouts = RolloutFunc(client, job=job, fleet=fleet, weights=tmp_path / "weights")
            training = ComparingTrainer(
                AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16),
                odd,
                args=GRPOConfig(
                    str(tmp_path / "out"),
                    max_steps=STEPS,
                    num_generations=4,
                    per_device_train_batch_size=4,
                    learning_rate=1e-2,
                    save_strategy="no",
                    use_cpu=True,
                    bf16=False,
                    gradient_checkpointing=False,
                    report_to="none",
                    disable_tqdm=True,
                ),
                train_dataset=task_prompts(job, range(4)),
                processing_class=AutoTokenizer.from_pretrained(path),
                rollout_func=rollouts,
            )
            training.train()
            stats = client.stats()
    finally:
        stack.close()
        fleet.update(str(path), "default")
    print(training.gaps)
    assert len(training.gaps) == STEPS
    for gap, moved in training.gaps:
        assert gap < 0.1 < moved
    assert (stats["groups_acked"], stats["dead"]) == (STEPS, 0)

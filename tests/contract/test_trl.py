"""What TRL gets from a real SGLang server: logprobs of the sampled tokens as its own model computes them."""

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
from rollq.trainers.trl import RolloutFunc, rollq_reward, task_prompts
from tests.contract.conftest import CACHE, Server
from tests.e2e.stack import Stack

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


def gaps(model: Any, rows: dict[str, list[Any]]) -> tuple[float, float]:
    """How far the model's logprobs are from the engine's at most, and on average when they are moved by one token."""
    most, moved = 0.0, []
    for prompt, completion, engine, mask in zip(
        rows["prompt_ids"], rows["completion_ids"], rows["logprobs"], rows["env_mask"], strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion]), logits_to_keep=len(completion) + 1).logits[0, :-1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        sampled = torch.tensor(mask).bool()
        most = max(most, (own - torch.tensor(engine))[sampled].abs().max().item())
        moved.append((own.roll(1) - torch.tensor(engine))[sampled].abs().mean().item())
    return most, sum(moved) / len(moved)


def test_the_trainers_logprobs_are_the_engines_also_after_weights_were_synced(
    sglang_server: Server, redis_url: str, tmp_path: Path
) -> None:
    path = Path(os.environ.get("ROLLQ_SGLANG_MODEL", CACHE / "tiny"))
    stack, fleet = Stack(tmp_path, redis_url), Fleet([sglang_server.url])
    try:
        stack.worker(4, "--tokenizer", str(path), engine_url=sglang_server.url)
        with Client(redis_url, run="r") as client:
            job = Job(env="shop", task=0, budget=Budget(max_turns=2, max_new_tokens=24))
            rollouts = RolloutFunc(client, job=job, fleet=fleet, weights=tmp_path / "weights")
            trainer = GRPOTrainer(
                AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
                rollq_reward,
                args=GRPOConfig(
                    str(tmp_path / "out"),
                    num_generations=2,
                    per_device_train_batch_size=2,
                    use_cpu=True,
                    bf16=False,
                    report_to="none",
                ),
                train_dataset=task_prompts(job, range(4)),
                processing_class=AutoTokenizer.from_pretrained(path),
                rollout_func=rollouts,
            )
            trainer.model.train()
            served = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
            prompts = [row["prompt"] for row in task_prompts(job, [3]) for _ in range(2)]
            seen = [gaps(served, rollouts(prompts, trainer))]
            torch.manual_seed(1)
            for ours, theirs in zip(trainer.model.parameters(), served.parameters(), strict=True):
                # As the engine holds them, so that what is left is the rounding of its sums.
                ours.data.add_(0.02 * torch.randn_like(ours)).copy_(ours.data.bfloat16())
                theirs.data.copy_(ours)
            trainer.state.global_step = 1
            seen.append(gaps(served, rollouts(prompts, trainer)))
            rollouts.close()
    finally:
        stack.close()
        fleet.update(str(path), "default")
    print(seen)
    for gap, moved in seen:
        assert gap < moved / 5

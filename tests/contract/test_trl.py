"""TRL's trainers on a real SGLang server: their steps, and logprobs of the sampled tokens as their
model has them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from examples.learn_shop.policy import CONTEXT, logprobs_of, make, save
from examples.learn_shop.train import Options
from examples.learn_shop.trl_trainers import async_grpo
from examples.learn_shop.with_trl import produce
from rollq import Client, Job
from rollq.job import Budget
from rollq.trajectory import Trajectory
from rollq.weights import Fleet
from rollq_integrations.trl import RolloutFunc, rollq_reward, task_prompts
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.contract.conftest import CACHE, Server, installed, sglang, sglang_scripts
from tests.e2e.stack import Stack
from tests.rollq_integrations.tiny import SIZE, trainer

torch.set_num_threads(1)  # tensors this small are slower with several
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A real server and the folder of its model: random weights in float32, and the small
    vocabulary that rollq ships, so that a trainer's logits take little memory.
    """
    scripts = sglang_scripts()
    venv, _ = installed(scripts)
    model = Path(save(make(load_tokenizer(), seed=1), tmp_path / "model"))
    flags = ["--dtype", "float32", "--context-length", str(CONTEXT), "--skip-server-warmup"]
    with sglang(scripts, venv, model, tmp_path / "server-log", *flags) as server:
        yield server, model


def gaps(model: Any, rows: dict[str, list[Any]]) -> tuple[float, float]:
    """How far the model's logprobs are from the engine's at most, and on average when they are
    moved by one token.
    """
    most, moved = 0.0, []
    for prompt, completion, engine, mask in zip(
        rows["prompt_ids"], rows["completion_ids"], rows["logprobs"], rows["env_mask"], strict=True
    ):
        with torch.no_grad():
            logits = model(
                torch.tensor([prompt + completion]), logits_to_keep=len(completion) + 1
            ).logits[0, :-1]
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


def gap(model: Any, trajectory: Trajectory) -> float:
    """How far the model's logprobs of the sampled tokens are from the engine's, on average."""
    mask = torch.tensor([list(trajectory.mask)]).bool()
    own, _ = logprobs_of(model, torch.tensor([list(trajectory.tokens)]), mask)
    engine = torch.tensor([list(trajectory.logprobs)])
    return (own - engine)[mask].abs().mean().item()


def test_the_trainer_steps_on_episodes_of_the_policy_of_the_step_before(
    small_server: tuple[Server, Path], redis_url: str, tmp_path: Path
) -> None:
    server, path = small_server
    start = AutoModelForCausalLM.from_pretrained(path)
    stack, played = Stack(tmp_path, redis_url), list[list[Trajectory]]()

    def odd_tokens(*, completion_ids: list[list[int]], job_id: list[str], **_: Any) -> list[float]:
        """A reward that random weights can earn."""
        played.append([client.trajectory(name) for name in job_id])
        return [sum(token % 2 for token in ids) / len(ids) for ids in completion_ids]

    try:
        stack.worker(6, "--tokenizer", str(path), engine_url=server.url)
        with Client(redis_url, run="r") as client:
            job = Job(env="shop:desk", task=0, budget=Budget(max_turns=3, max_new_tokens=24))
            rollouts = RolloutFunc(
                client, job=job, fleet=Fleet([server.url]), weights=tmp_path / "weights"
            )
            training = trainer(
                rollouts,
                tmp_path / "out",
                AutoModelForCausalLM.from_pretrained(path),
                odd_tokens,
                max_steps=2,
                save_strategy="no",
            )
            training.train()
            stats, published = client.stats(), client.published()
    finally:
        stack.close()

    assert published is not None and published.step == 1
    assert (stats["done"], stats["groups_acked"], stats["dead"]) == (4 * SIZE, 4, 0)
    trained = training.model.state_dict()
    assert all(
        not torch.equal(tensor, trained[name]) for name, tensor in start.state_dict().items()
    )
    for step, (trajectories, inputs) in enumerate(zip(played, training.inputs, strict=True)):
        versions = {
            version for each in trajectories for version in each.versions if version is not None
        }
        assert versions == {str(step)}
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        assert sorted(mask.sum(1).tolist()) == sorted(each.sampled_tokens for each in trajectories)
        engine, own = inputs["sampling_per_token_logps"][mask], training.logprobs[step][mask]
        assert (engine - own).abs().mean() < 0.01
    assert mean(gap(start, each) for each in played[1]) > 0.05, (
        "step 1 changed the policy, and the engine has it"
    )


class Producer(TrainerCallback):
    """Submits when the first weights are synced: what was played before would be skipped."""

    def __init__(self, client: Client, options: Options) -> None:
        self.begin = lambda: produce(client, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.thread = self.begin()


def test_the_async_trainer_gives_the_engine_its_weights(
    small_server: tuple[Server, Path], redis_url: str, tmp_path: Path
) -> None:
    """Random weights earn nothing, so no step changes them: the trainer begins with others than the
    engine has.
    """
    server, path = small_server
    options = Options(
        steps=2, groups=2, size=2, staleness=1, budget=Budget(max_turns=3, max_new_tokens=24)
    )
    other = save(make(load_tokenizer(), seed=2), tmp_path / "other")
    stack, fleet = Stack(tmp_path, redis_url), Fleet([server.url])
    try:
        stack.worker(6, "--tokenizer", str(path), engine_url=server.url)
        with Client(redis_url, run="r") as client:
            training = async_grpo(client, fleet, other, tmp_path, options)
            training.add_callback(producer := Producer(client, options))
            training.train()
            producer.thread.join()
            published = client.published()
        with Client(redis_url, run="after") as client:
            client.submit([Job(env="shop:desk", task=0, budget=options.budget)])
            [last] = next(client.batches(groups=1, timeout=120)).trajectories
    finally:
        stack.close()
    assert published is not None and published.step == 2 and set(last.versions) <= {None, "2"}
    steps = [step for step in training.state.log_history if "kl" in step]
    assert len(steps) == 2 and max(step["kl"] for step in steps) < 1e-4, (
        "the engine's logprobs are the trainer's"
    )
    theirs, ours = (AutoModelForCausalLM.from_pretrained(folder) for folder in (path, other))
    assert gap(ours, last) < 0.01 < 0.05 < gap(theirs, last)

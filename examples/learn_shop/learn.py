"""A policy learns the shop. `make learn` and `make learn-gpu` run it; docs/learn.md has the curves.

python -m examples.learn_shop.learn [--model DIR] [--staleness 1] [--sglang VENV | --engine URL]
[--out FOLDER]
"""

import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from examples.learn_shop.audited import audit
from examples.learn_shop.courses import Say, add_flags, clock, course_of, device, load, run_main
from examples.learn_shop.distill import TEACHER, distil
from examples.learn_shop.engines import choose_sglang, engine, threads
from examples.learn_shop.figure import draw
from examples.learn_shop.policy import Loss
from examples.learn_shop.train import RUN, Change, Options, learn, policy_loss, tasks, unchanged
from rollq import Client
from rollq.weights import Fleet
from rollq_worker.commands.demo.processes import DemoProcesses


def run(
    start: Path,
    folder: Path,
    options: Options,
    say: Say,
    *,
    sglang: Path | None = None,
    engine_url: str | None = None,
    change: Change = unchanged,
    loss_of: Loss = policy_loss,
    audited: bool = False,
    teacher: Path | None = None,
) -> list[dict[str, Any]]:
    """One run with processes of its own. Returns the numbers of all steps; results.json has those
    so far.

    `audited`: the last policy plays one more batch, and the engine scores its tokens again.
    `teacher`: the folder of a policy that scores the training episodes, on an engine of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.cuda.empty_cache()  # an engine on this GPU takes a share of what is free
    model = load(start, device(options))
    torch.set_num_threads(threads(options))
    results: dict[str, Any] = {"options": asdict(options), "steps": []}
    began = time.monotonic()
    with DemoProcesses(say) as processes, ExitStack() as stack:
        processes.start_redis()
        processes.use_engine(
            engine_url or stack.enter_context(engine(str(start), folder, sglang, options))
        )
        models = ""
        if teacher:
            (folder / "teacher").mkdir(exist_ok=True)
            scorer = engine(str(teacher), folder / "teacher", sglang, options)
            models = f"{TEACHER}={stack.enter_context(scorer)}"
        processes.start_worker(options.slots, str(start), models)
        client = stack.enter_context(Client(processes.redis_url, run=RUN))
        fleet = Fleet([processes.engine_url])
        teachers = {TEACHER: {"model": TEACHER}} if teacher else {}
        for numbers in learn(
            client, fleet, model, start, folder, options, change, loss_of, teachers
        ):
            numbers["at_s"] = time.monotonic() - began
            results["steps"].append(numbers)
            (folder / "results.json").write_text(json.dumps(results, indent=1))
            say(progress(numbers, options.steps))
            processes.check()
        if audited:
            client.submit(tasks(options, "audit", options.groups))
            results["audit"] = audit(
                processes.redis_url, processes.engine_url, folder, options.groups
            )
            (folder / "results.json").write_text(json.dumps(results, indent=1))
            say(f"audit of a batch of the last policy: {results['audit']['verdict']}")
    return results["steps"]


def results(folder: Path, options: Options) -> list[dict[str, Any]] | None:
    """The numbers of a run that was made with these options, to its end."""
    if not (file := folder / "results.json").exists():
        return None
    kept = json.loads(file.read_text())
    finished = kept["steps"][-1]["step"] == options.steps
    return kept["steps"] if finished and kept["options"] == asdict(options) else None


def progress(numbers: dict[str, Any], steps: int) -> str:
    step, at = numbers["step"], numbers["at_s"]
    held_out = f"held out {numbers['held_out']:.2f}" if "held_out" in numbers else " " * 13
    if "reward" not in numbers:
        return f"step {step:3d}/{steps}  {held_out}  done after {at:.0f} s"
    left = at / (step + 1) * (steps - step - 1)
    return (
        f"step {step:3d}/{steps}  {held_out}  train {numbers['reward']:.2f}  staleness "
        f"{numbers['staleness_mean']:.1f}"
        f"  entropy {numbers['entropy']:.3f}  {numbers['tokens_per_s']:5.0f} tokens/s  "
        f"about {left:.0f} s left"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser)
    parser.add_argument(
        "--staleness",
        type=int,
        default=None,
        help="train at this bound only (default: at 0, then at 1)",
    )
    parser.add_argument(
        "--teacher",
        action="store_true",
        help="then distil a teacher, in place of rewards (the tiny policy, at a staleness of 1)",
    )
    args = parser.parse_args()
    say = clock()
    course = course_of(args)
    sglang = choose_sglang(args)
    say(
        "engine: "
        f"{args.engine or (f'SGLang of {sglang}' if sglang else 'the sampler of this example')}"
    )
    say(f"trainer: {device(course.options)}")
    if args.teacher and (args.model or args.engine or args.staleness not in (None, 1)):
        raise SystemExit("--teacher is for the tiny policy at a staleness of 1, on its own engines")
    start = course.start(args.out, say)
    histories = {}
    audited = course.pretrained is not None
    bounds = [1] if args.teacher else [0, 1] if args.staleness is None else [args.staleness]
    for staleness in bounds:
        say(f"learning with a staleness of at most {staleness}")
        options = replace(course.options, staleness=staleness)
        folder = args.out / f"staleness-{staleness}"
        kept = results(folder, options) if args.teacher else None
        histories[f"staleness {staleness}"] = kept or run(
            start, folder, options, say, sglang=sglang, engine_url=args.engine, audited=audited
        )
    if args.teacher:
        [grpo] = histories.values()
        teacher = course.teacher(args.out, say)
        distil(run, start, teacher, args.out, course.options, say, grpo, sglang=sglang)
        return
    picture = draw(histories, args.out / "learn.png")
    for name, history in histories.items():
        say(
            f"{name}: reward on held-out tasks {history[0]['held_out']:.2f} -> "
            f"{history[-1]['held_out']:.2f}"
        )
    say(f"figure: {picture}, numbers: {args.out}/staleness-*/results.json")


if __name__ == "__main__":
    run_main(main)

"""A tiny policy learns the shop's service desk. `make learn` runs it; docs/learn.md has the curves.

python -m examples.learn_shop.learn [--staleness 1] [--sglang VENV | --engine URL] [--out FOLDER]
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from examples.learn_shop.engines import engine, find_sglang
from examples.learn_shop.figure import draw
from examples.learn_shop.policy import save
from examples.learn_shop.train import Change, Options, learn
from examples.learn_shop.warm_start import warm_start
from rollq import Client
from rollq.weights import Fleet
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.tokens.tokenizer import load_tokenizer

CONCURRENCY = 64
CORES = 2
Say = Callable[[str], None]


def make_start(folder: Path, steps: int, seed: int, say: Say) -> str:
    """The folder of the policy before it learns. It is made once."""
    start = folder / "start"
    if not (start / "model.safetensors").exists():
        save(warm_start(load_tokenizer(), steps, seed, say), start)
    return str(start)


def run(
    start: str,
    folder: Path,
    options: Options,
    say: Say,
    *,
    sglang: Path | None = None,
    engine_url: str | None = None,
    change: Change | None = None,
) -> list[dict[str, Any]]:
    """One run with processes of its own. Returns the numbers of all steps; results.json has those so far."""
    folder.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(start)
    torch.set_num_threads(1 if options.staleness else CORES)  # on policy, nothing else runs while the trainer does
    history: list[dict[str, Any]] = []
    began = time.monotonic()
    with DemoProcesses(say) as processes, ExitStack() as stack:
        processes.start_redis()
        processes.use_engine(engine_url or stack.enter_context(engine(start, folder, sglang, options.seed)))
        processes.start_worker(CONCURRENCY, start)
        client = stack.enter_context(Client(processes.redis_url, run="learn"))
        fleet = Fleet([processes.engine_url])
        for numbers in learn(client, fleet, model, folder, options, change):
            numbers["at_s"] = time.monotonic() - began
            history.append(numbers)
            (folder / "results.json").write_text(json.dumps({"options": vars(options), "steps": history}, indent=1))
            say(progress(numbers, options.steps))
            processes.check()
    return history


def progress(numbers: dict[str, Any], steps: int) -> str:
    step, at = numbers["step"], numbers["at_s"]
    held_out = f"held out {numbers['held_out']:.2f}" if "held_out" in numbers else " " * 13
    if "reward" not in numbers:
        return f"step {step:3d}/{steps}  {held_out}  done after {at:.0f} s"
    left = at / (step + 1) * (steps - step - 1)
    return (
        f"step {step:3d}/{steps}  {held_out}  train {numbers['reward']:.2f}  staleness {numbers['staleness_mean']:.1f}"
        f"  entropy {numbers['entropy']:.3f}  {numbers['tokens_per_s']:5.0f} tokens/s  about {left:.0f} s left"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/learn"))
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--warm-steps", type=int, default=160)
    parser.add_argument(
        "--staleness", type=int, default=None, help="train at this bound only (default: at 0, then at 1)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sglang", type=Path, help="the folder of a virtual environment with SGLang in it")
    parser.add_argument("--engine", help="an SGLang server that runs, of a model of the shape of OUT/start")
    args = parser.parse_args()
    transformers.logging.disable_progress_bar()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    sglang = args.sglang / "bin/python" if args.sglang else None if args.engine else find_sglang()
    say(f"engine: {args.engine or (f'SGLang of {sglang}' if sglang else 'the sampler of this example')}")
    start = make_start(args.out, args.warm_steps, args.seed, say)
    histories = {}
    for staleness in [0, 1] if args.staleness is None else [args.staleness]:
        say(f"learning with a staleness of at most {staleness}")
        options = Options(steps=args.steps, staleness=staleness, seed=args.seed)
        folder = args.out / f"staleness-{staleness}"
        histories[f"staleness {staleness}"] = run(start, folder, options, say, sglang=sglang, engine_url=args.engine)
    picture = draw(histories, args.out / "learn.png")
    for name, history in histories.items():
        say(f"{name}: reward on held-out tasks {history[0]['held_out']:.2f} -> {history[-1]['held_out']:.2f}")
    say(f"figure: {picture}, numbers: {args.out}/staleness-*/results.json")


if __name__ == "__main__":
    main()

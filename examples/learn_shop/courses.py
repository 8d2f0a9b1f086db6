"""Courses, each with its policy: the tiny one at the desk, or a pretrained one in the shop or at
the desk.

A course has the policy before it learns from rewards, and how it is trained. The commands of this
folder take it from the same flags.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from examples.learn_shop.demonstrations import RIGHT, demonstration
from examples.learn_shop.policy import TEMPLATE, make, save
from examples.learn_shop.train import Options
from examples.learn_shop.warm_start import ROWS, warm_start
from rollq import Budget
from rollq.errors import RollqError, SettingsError
from rollq_worker.environments import domain
from rollq_worker.replay_engine.policy.ground_truth import END
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer

EPISODES = 1500
"""Most demonstrations of a warm start."""
WARM_TINY, WARM_MODEL = 400, 160
"""Steps of a warm start. With 160 of them, the tiny policy lost two of the calls for good."""
TINY = Options()
SHOP = Options(
    env="shop",
    budget=Budget(max_turns=24, max_new_tokens=192, max_tokens=7168),
    context=8192,
    rate=3e-5,
    at_once=8,
    bf16=torch.cuda.is_available(),  # most CPUs are slower in bfloat16
    held_out=100,
    slots=128,
)
"""Options of a pretrained policy of about 100 million weights."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Course:
    options: Options
    pretrained: Path | None
    """The folder of a pretrained model. None for the tiny policy."""
    warm_steps: int
    warm_rate: float

    def start(self, folder: Path, say: Say) -> Path:
        """The folder of the policy before it learns from rewards. It is made once.

        Raises SettingsError when there is one of another course, or the model's vocabulary does not
        fit.
        """
        start = folder / "start"
        made = folder / "start.json"
        wanted = self._settings()
        if not made.exists():
            self._make(start, say)
            made.write_text(json.dumps(wanted))
        elif (found := json.loads(made.read_text())) != wanted:
            raise SettingsError(
                f"{start} was made with {found}, and this is {wanted}: choose another "
                "folder with --out"
            )
        return start

    def _settings(self) -> dict[str, Any]:
        model = self.pretrained and str(self.pretrained.resolve())
        tasks = domain(self.options.env).version
        return {
            "model": model,
            "tasks": tasks,
            "warm_steps": self.warm_steps,
            "seed": self.options.seed,
        }

    def teacher(self, folder: Path, say: Say) -> Path:
        """The folder of a policy that has learned from demonstrations without mistakes. It is made
        once.
        """
        teacher = folder / "teacher"
        if not (teacher / "config.json").exists():
            self._make(teacher, say, right=1.0)
        return teacher

    def _make(self, start: Path, say: Say, right: float = RIGHT) -> None:
        options = self.options
        rng = random.Random(self.options.seed)
        vocabulary = self.pretrained or BUNDLED
        tokenizer = vocabulary_of(vocabulary)
        model = (
            load(vocabulary, device(options)) if self.pretrained else make(tokenizer, options.seed)
        )
        say(f"warm start: playing demonstrations of {options.env}")
        episodes = [
            demonstration(options.env, tokenizer, rng, right)
            for _ in range(min(self.warm_steps * ROWS, EPISODES))
        ]
        how = {"rate": self.warm_rate, "at_once": options.at_once, "bf16": options.bf16}
        warm_start(model, episodes, rng, say, steps=self.warm_steps, **how)
        save(model, start, vocabulary)


def vocabulary_of(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, with the chat template that `save` gives the policy. Raises
    SettingsError for a vocabulary that does not fit the template.
    """
    tokenizer = load_tokenizer(str(folder), str(BUNDLED / TEMPLATE))
    if END not in tokenizer.added_tokens:
        raise SettingsError(f"{folder} has no token {END}: choose a model that writes ChatML")
    return tokenizer


def load(folder: Path, where: str) -> PreTrainedModel:
    """The model with float32 weights on a device of torch."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(
        where
    )
    return model


def device(options: Options) -> str:
    """Device of the trainer. The tiny policy learns on the CPU everywhere."""
    return "cuda" if options.bf16 else "cpu"


def clock() -> Say:
    """A function that prints lines with the seconds since this call."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    return say


def run_main(main: Callable[[], None]) -> None:
    """Runs the main function of one of the commands. An error of rollq ends it with its message."""
    transformers.logging.disable_progress_bar()
    try:
        main()
    except RollqError as error:
        raise SystemExit(f"error: {error}") from None


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, help="the folder of a pretrained model (default: the tiny policy)"
    )
    parser.add_argument(
        "--env",
        choices=("shop", "shop:desk"),
        help="what a pretrained model learns (default: shop)",
    )
    parser.add_argument("--out", type=Path, default=Path("build/learn"))
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--groups", type=int, default=Options.groups, help="groups of a step")
    parser.add_argument("--held-out", type=int, help="tasks of an evaluation")
    parser.add_argument(
        "--warm-steps",
        type=int,
        help=f"steps of the warm start, of {ROWS} demonstrations each"
        f" (default: {WARM_TINY}; {WARM_MODEL} with --model)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sglang", type=Path, help="the folder of a virtual environment with SGLang in it"
    )
    parser.add_argument(
        "--engine", help="an SGLang or vLLM server that runs, of a model of the shape of OUT/start"
    )


def course_of(args: argparse.Namespace) -> Course:
    """The course that the flags name. Ends the program for flags that do not fit."""
    if args.model and not args.model.is_dir():
        raise SystemExit(f"--model {args.model}: there is no such folder")
    if args.env and not args.model:
        raise SystemExit("--env is for a pretrained model: name its folder with --model")
    options = replace(
        SHOP if args.model else TINY, steps=args.steps, groups=args.groups, seed=args.seed
    )
    if args.env == TINY.env:
        at_once = (
            32 if device(options) == "cuda" else 16
        )  # its rows are short; 32 took 16 GB on a CPU
        options = replace(options, env=TINY.env, budget=TINY.budget, at_once=at_once)
    if args.held_out:
        options = replace(options, held_out=args.held_out)
    warm_steps, warm_rate = (WARM_MODEL, 1e-4) if args.model else (WARM_TINY, 1e-2)
    return Course(
        options, args.model, warm_steps if args.warm_steps is None else args.warm_steps, warm_rate
    )

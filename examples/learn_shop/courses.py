"""What is learned, by which policy: the tiny one at the desk, or a pretrained one in the shop or at the desk.

A course has the policy before it learns from rewards, and how it is trained. The commands of this folder take it from
the same flags.
"""

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from examples.learn_shop.demonstrations import demonstration
from examples.learn_shop.policy import TEMPLATE, make, save
from examples.learn_shop.train import Options
from examples.learn_shop.warm_start import warm_start
from rollq import Budget
from rollq.errors import SettingsError
from rollq_worker.replay_engine.policy.ground_truth import END
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer

EPISODES = 1500
"""Most demonstrations of a warm start."""
TINY = Options()
SHOP = Options(
    env="shop",
    budget=Budget(max_turns=24, max_new_tokens=192, max_tokens=7168),
    context=8192,
    rate=3e-5,
    at_once=8,
    bf16=True,
    held_out=100,
    audited=True,
)
"""Of a pretrained policy of about 100 million weights."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Course:
    options: Options
    pretrained: Path | None
    """The folder of a pretrained model; None: the tiny policy."""
    warm_steps: int
    warm_rate: float

    def start(self, folder: Path, say: Say) -> Path:
        """The folder of the policy before it learns from rewards. It is made once."""
        start = folder / "start"
        if not (start / "model.safetensors").exists():
            model, vocabulary = self._untaught()
            self._teach(model, load_vocabulary(vocabulary), say)
            save(model, start, vocabulary)
        return start

    def _untaught(self) -> tuple[PreTrainedModel, Path]:
        if self.pretrained is None:
            return make(load_tokenizer(), self.options.seed), BUNDLED
        return load(self.pretrained, device(self.options)), self.pretrained

    def _teach(self, model: PreTrainedModel, tokenizer: Tokenizer, say: Say) -> None:
        rng, options = random.Random(self.options.seed), self.options
        say(f"warm start: playing demonstrations of {options.env}")
        count = min(self.warm_steps * 32, EPISODES)
        episodes = [demonstration(options.env, tokenizer, rng) for _ in range(count)]
        warm_start(
            model,
            episodes,
            rng,
            say,
            steps=self.warm_steps,
            rate=self.warm_rate,
            at_once=options.at_once,
            bf16=options.bf16,
        )


def load_vocabulary(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, with the chat template that `save` gives the policy. Raises SettingsError for a
    vocabulary that does not fit the template."""
    tokenizer = load_tokenizer(str(folder)).with_template((BUNDLED / TEMPLATE).read_text())
    if END not in tokenizer.added_tokens:
        raise SettingsError(f"{folder} has no token {END}: choose a model that writes ChatML")
    return tokenizer


def load(folder: Path, where: str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(where)
    return model


def device(options: Options) -> str:
    """The tiny policy learns on the CPU everywhere."""
    return "cuda" if options.bf16 and torch.cuda.is_available() else "cpu"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="the folder of a pretrained model (default: the tiny policy)")
    parser.add_argument("--env", choices=("shop", "shop:desk"), help="what a pretrained model learns (default: shop)")
    parser.add_argument("--out", type=Path, default=Path("build/learn"))
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--groups", type=int, default=Options.groups, help="groups of a step")
    parser.add_argument("--held-out", type=int, help="tasks of an evaluation")
    parser.add_argument(
        "--warm-steps", type=int, default=160, help="steps of the warm start, of 32 demonstrations each"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sglang", type=Path, help="the folder of a virtual environment with SGLang in it")
    parser.add_argument("--engine", help="an SGLang server that runs, of a model of the shape of OUT/start")


def course_of(args: argparse.Namespace) -> Course:
    options = replace(SHOP if args.model else TINY, steps=args.steps, groups=args.groups, seed=args.seed)
    if args.env and not args.model:
        raise SystemExit("--env is for a pretrained model: name its folder with --model")
    if args.env:
        options = replace(options, env=args.env, budget=TINY.budget if args.env == TINY.env else SHOP.budget)
    if args.held_out is not None:
        options = replace(options, held_out=args.held_out)
    return Course(options, args.model, args.warm_steps, 1e-4 if args.model else 1e-2)

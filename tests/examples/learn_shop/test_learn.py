"""Two steps of the whole example: Redis, sampler, worker, trainer, weight updates and
evaluation.
"""

import json
from pathlib import Path

import pytest

from examples.learn_shop.figure import draw
from examples.learn_shop.learn import run
from examples.learn_shop.negative_controls import CONTROLS
from examples.learn_shop.train import Options


@pytest.mark.parametrize("name", ["correct", "logprobs"])
def test_a_run_of_two_steps(models: list[str], tmp_path: Path, name: str) -> None:
    options = Options(steps=2, groups=2, size=2, held_out=8, evaluate_every=2)
    lines: list[str] = []
    history = run(Path(models[0]), tmp_path, options, lines.append, change=CONTROLS[name].change)
    assert [numbers["step"] for numbers in history] == [0, 1, 2]
    assert json.loads((tmp_path / "results.json").read_text())["steps"] == history
    assert ["held_out" in numbers for numbers in history] == [True, False, True]
    for numbers in history[:2]:
        assert numbers["staleness_max"] == 0 and numbers["sampled_tokens"] > 0
        assert (numbers["mean_abs_log_ratio"] < 1e-4) == (name == "correct"), (
            "the engine's logprobs are the trainer's"
        )
    assert sum("held out" in line for line in lines) == 2
    assert draw({name: history}, tmp_path / "learn.png").stat().st_size > 1000

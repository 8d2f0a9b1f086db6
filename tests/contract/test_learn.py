"""A model's folder learns the shop on a real SGLang server: warm start, two steps, an evaluation
before and after, and an audit of what the last policy played.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.learn_shop.courses import SHOP, Course
from examples.learn_shop.learn import run
from examples.learn_shop.policy import make, save
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.contract.conftest import Server, installed, sglang, sglang_scripts

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


@pytest.fixture
def untaught(tmp_path: Path) -> Path:
    return Path(save(make(load_tokenizer(), seed=1, context=SHOP.context), tmp_path / "model"))


@pytest.fixture
def server(untaught: Path, tmp_path: Path) -> Iterator[Server]:
    scripts = sglang_scripts()
    venv, _ = installed(scripts)
    dtype = "bfloat16" if SHOP.bf16 else "float32"
    flags = ["--dtype", dtype, "--context-length", str(SHOP.context), "--skip-server-warmup"]
    with sglang(scripts, venv, untaught, tmp_path / "server-log", *flags) as server:
        yield server


def test_two_steps_in_the_shop(untaught: Path, server: Server, tmp_path: Path) -> None:
    options = replace(SHOP, steps=2, groups=2, size=2, held_out=4, evaluate_every=2)
    course, lines = Course(options, untaught, warm_steps=3, warm_rate=1e-3), list[str]()
    start = course.start(tmp_path, lines.append)
    history = run(
        start, tmp_path / "run", options, lines.append, engine_url=server.url, audited=True
    )
    assert [numbers["step"] for numbers in history] == [0, 1, 2] and "held_out" in history[2]
    for numbers in history[:2]:
        assert numbers["staleness_max"] == 0 and numbers["sampled_tokens"] > 0
        assert numbers["mean_abs_log_ratio"] < (0.02 if SHOP.bf16 else 1e-4), (
            "the engine's logprobs are the trainer's"
        )
    audit = json.loads((tmp_path / "run/results.json").read_text())["audit"]
    assert audit["verdict"] == "ok" and audit["trajectories"] == 4

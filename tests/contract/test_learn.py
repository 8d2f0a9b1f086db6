"""A model's folder learns the shop on a real SGLang or vLLM server: warm start, two steps, an
evaluation before and after, and an audit of what the last policy played.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.learn_shop import policy
from examples.learn_shop.courses import SHOP, Course
from examples.learn_shop.learn import run
from examples.learn_shop.policy import make, save
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.contract.conftest import (
    ONLY_REAL,
    VLLM,
    Server,
    installed,
    sglang,
    sglang_scripts,
    vllm,
)


@pytest.fixture
def untaught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(policy, "HEADS", 2)  # those of vLLM on a CPU
    monkeypatch.setattr(policy, "TIED", False)
    return Path(save(make(load_tokenizer(), seed=1, context=SHOP.context), tmp_path / "model"))


@pytest.fixture(params=[*ONLY_REAL, VLLM])
def server(request: pytest.FixtureRequest, untaught: Path, tmp_path: Path) -> Iterator[Server]:
    flags = ["--dtype", "bfloat16" if SHOP.bf16 else "float32"]
    if request.param == "vllm":
        flags += ["--max-model-len", str(SHOP.context)]
        with vllm(tmp_path / "server-log", *flags, model=untaught) as server:
            yield server
        return
    scripts = sglang_scripts()
    venv, _ = installed(scripts)
    flags += ["--context-length", str(SHOP.context), "--skip-server-warmup"]
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

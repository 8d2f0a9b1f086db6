"""The flags that name a course, and the policy before it learns from rewards."""

import argparse
import json
import shutil
from pathlib import Path

import pytest
import torch

from examples.learn_shop.courses import SHOP, TINY, add_flags, course_of
from examples.learn_shop.policy import make, save
from rollq.errors import SettingsError
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer


def course(*flags: str):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return course_of(parser.parse_args(flags))


@pytest.fixture
def model(tokenizer: Tokenizer, tmp_path: Path) -> str:
    return save(make(tokenizer, 1), tmp_path / "model")


def test_a_model_learns_the_shop_or_its_desk(model: str) -> None:
    assert course().options == TINY and course("--model", model).options == SHOP
    assert (course().warm_steps, course("--model", model).warm_steps) == (400, 160)
    desk = course("--model", model, "--env", "shop:desk", "--held-out", "8").options
    assert (desk.env, desk.budget, desk.held_out, desk.bf16) == (
        TINY.env,
        TINY.budget,
        8,
        torch.cuda.is_available(),
    )


@pytest.mark.parametrize(
    ("flags", "wrong"), [(["--model", "nowhere"], "no such folder"), (["--env", "shop"], "--model")]
)
def test_flags_that_do_not_fit_end_the_program(flags: list[str], wrong: str) -> None:
    with pytest.raises(SystemExit, match=wrong):
        course(*flags)


def test_the_policy_is_taught_once(model: str, tmp_path: Path) -> None:
    flags, lines = ("--model", model, "--env", "shop:desk", "--warm-steps"), list[str]()
    start = course(*flags, "1").start(tmp_path / "out", lines.append)
    assert any("loss" in line for line in lines) and (start / "model.safetensors").exists()
    assert course(*flags, "1").start(tmp_path / "out", pytest.fail) == start
    with pytest.raises(SettingsError, match="--out"):
        course(*flags, "2").start(tmp_path / "out", pytest.fail)
    made = tmp_path / "out/start.json"
    made.write_text(made.read_text().replace("shop:desk 3", "shop:desk 2"))
    with pytest.raises(SettingsError, match="shop:desk 2"):
        course(*flags, "1").start(tmp_path / "out", pytest.fail)


def test_without_warm_steps_the_model_stays_as_it_is(model: str, tmp_path: Path) -> None:
    start = course("--model", model, "--warm-steps", "0").start(tmp_path, print)
    assert (start / "model.safetensors").read_bytes() == (
        Path(model) / "model.safetensors"
    ).read_bytes()


def test_a_vocabulary_without_chatml_is_refused(model: str, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    spec = (BUNDLED / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(spec.replace("<|im_end|>", "<|im_over|>"))
    config = json.loads((BUNDLED / "tokenizer_config.json").read_text()) | {
        "eos_token": "<|im_over|>"
    }
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match="ChatML"):
        course("--model", str(other)).start(tmp_path, print)

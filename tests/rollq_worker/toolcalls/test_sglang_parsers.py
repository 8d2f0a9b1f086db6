"""Our readers against SGLang's own parsers: the same calls and text, or a difference that is meant.

`ROLLQ_TEST_SGLANG_PYTHON` is the Python of an environment with sglang in it; without it,
~/.cache/rollq/sglang.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollq_worker.toolcalls import PARSERS
from tests.conftest import REPO
from tests.rollq_worker.toolcalls.turns.every_format import TURNS
from tests.rollq_worker.toolcalls.turns.turn import TOOLS, Turn

pytestmark = pytest.mark.sglang
SHIM = Path(os.environ.get("ROLLQ_SHARED", REPO.parent / "shared")) / "sglang_cpu" / "shim"
"""Where it exists: stand-ins for the kernels that sglang imports, for a machine without a GPU."""
WITHOUT_PARSER = {
    "seed",
    "granite3",
    "nemotron_v2",
    "functionary_v31",
    "functionary_v32",
    "solar",
    "apriel",
    "minimax_m1",
    "longcat",
    "olmo3",
    "xlam",
}
"""Formats that SGLang has no parser for."""
COMPARED = [turn for turn in TURNS if turn.format not in WITHOUT_PARSER]
SCRIPT = Path(__file__).with_name("sglang_parsers.py")


def given(turn: Turn) -> str:
    """The turn as SGLang's parser is given it: gpt-oss' one wants the prompt's header and the stop
    token as well, and Hunyuan's looks up in the vocabulary how its tags end.
    """
    if turn.format == "hunyuan3":
        return turn.text.replace(":opensource", "")
    if turn.format != "gpt_oss":
        return turn.text
    return f"<|start|>assistant{turn.text}<|{'call' if 'to=' in turn.text else 'return'}|>"


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """What SGLang reads, by the turn's id."""
    python = os.environ.get("ROLLQ_TEST_SGLANG_PYTHON") or str(
        Path.home() / ".cache/rollq/sglang/bin/python"
    )
    if not Path(python).exists():
        pytest.fail(
            f"no {python}: give the Python of an SGLang installation with ROLLQ_TEST_SGLANG_PYTHON"
        )
    asked = {
        "tools": TOOLS,
        "turns": [{"format": turn.format, "text": given(turn)} for turn in COMPARED],
    }
    done = subprocess.run(
        [python, str(SCRIPT)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "PYTHONPATH": str(SHIM)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    return {turn.id: answer for turn, answer in zip(COMPARED, read, strict=True)}


@pytest.mark.parametrize("turn", COMPARED, ids=[turn.id for turn in COMPARED])
def test_sglang_reads_the_same_or_differs_as_listed(turn: Turn, theirs: dict[str, Any]):
    read = PARSERS[turn.format](turn.text, None if "</think>" in turn.text else False, TOOLS)
    ours = {
        "text": read.content,
        "calls": [[call.name, dict(call.arguments)] for call in read.calls],
    }
    answer = dict(theirs[turn.id])
    if "text" in answer:
        answer["text"] = answer["text"].strip()
    same = ours == answer and not read.errors
    assert same == (not turn.sglang), (
        f"ours {ours} {list(read.errors)}, SGLang's {answer}; listed: {turn.sglang!r}"
    )


def test_every_format_is_compared():
    assert {turn.format for turn in COMPARED} == set(PARSERS) - WITHOUT_PARSER

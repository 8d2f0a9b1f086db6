"""`rollq audit` with an engine that gives the scores the test wants."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from tests.conftest import free_port
from tests.rollq_worker.audit.scoring_engine import next_reply, scores, scoring_engine
from tests.rollq_worker.engine.engine_servers import ScriptedEngine

RECORD = {
    "job": "r/g/0",
    "tokens": [5, 6, 7, 8],
    "mask": [0, 0, 1, 1],
    "logprobs": [0.0, 0.0, -0.5, -0.5],
    "versions": [None, None, "v1", "v1"],
    "traces": [4],
    "sampling": {},
}


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with scoring_engine() as engine:
        yield engine


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ROLLQ_TOKENIZER", raising=False)
    return write(tmp_path / "x.jsonl")


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**RECORD, **changes}) + "\n")
    return path


def audit(file: Path, url: str, *flags: str) -> int:
    return cli.main(["audit", str(file), "--engine", url, *flags])


def test_a_good_file(engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.answers = [scores, scores]
    assert audit(file, engine.url) == 0
    shown = capsys.readouterr().out
    assert "r/g/0" in shown and shown.rstrip().endswith("verdict: ok")
    assert audit(file, engine.url, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == (
        "trajectories tokens skipped mean_abs p99_abs max_abs max_abs_prefill revised shift classes faulty faults worst"
        " verdict".split()
    )
    assert (found["trajectories"], found["tokens"], found["mean_abs"], found["verdict"]) == (1, 2, 0.0, "ok")


def test_a_bad_file(engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.answers = [scores]
    write(file, logprobs=[0.0, 0.0, -0.9, -0.5])
    assert audit(file, engine.url) == 1
    shown = capsys.readouterr().out
    assert "recorded -0.9000, scored -0.5000\n" in shown and "verdict: bad; the mean difference is 0.20" in shown


def test_a_token_that_was_rounded_the_other_way(
    engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n = 60
    logprobs = [0.0] * 2 + [-0.5] * (n - 1) + [-0.56]
    columns = {"tokens": [5] * 2 + [7] * n, "mask": [0] * 2 + [1] * n, "versions": [None] * 2 + ["v1"] * n}
    write(file, **columns, logprobs=logprobs, traces=[n + 2])
    engine.answers = [scores, next_reply([-0.555, 7, None])]
    assert audit(file, engine.url) == 0
    shown = capsys.readouterr().out
    assert "recorded -0.5600, scored -0.5000, decoded -0.5550\n" in shown
    assert "revised: decoding gives what was recorded for 1 of the worst tokens; " in shown
    assert "largest difference then 0.005000, by prefill 0.060000" in shown and len(engine.bodies()) == 2


def test_weights_by_another_name(engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(file, versions=[None, None, "step-4", "step-4"])
    assert audit(file, engine.url) == 1
    shown = capsys.readouterr().out
    assert "skipped: 2 tokens sampled by other weights" in shown and "verdict: incomplete; 0 of 2" in shown
    assert not engine.bodies()
    engine.answers = [scores]
    assert audit(file, engine.url, "--versions", "step-3,step-4") == 0


def test_an_engine_that_does_not_report_its_weights(
    engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del engine.paths["/model_info"]
    assert audit(file, engine.url) == 2
    assert "name them with --versions" in capsys.readouterr().err


def test_an_unknown_id_is_not_sent(engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(file, tokens=[5, 400000, 7, 8])
    assert audit(file, engine.url) == 1
    assert "holds token id 400000, which the tokenizer of rollq does not know" in capsys.readouterr().err
    assert not engine.bodies()
    write(file, tokens=[5, 6, 400000, 8])  # a model's padding id may well be sampled
    assert audit(file, engine.url) == 1
    assert "2 tokens in a trace with an id beyond the vocabulary" in capsys.readouterr().out
    assert not engine.bodies()


def test_an_engine_that_breaks(engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text() * 3)
    engine.answers = [scores, scores, "reset"]
    assert audit(file, engine.url, "-c", "1") == 1
    captured = capsys.readouterr()
    assert "the engine broke" in captured.err and "2 of 3 trajectories were scored" in captured.err
    assert captured.out.count("r/g/0") == 2 and "verdict" not in captured.out


def test_a_file_that_cannot_be_audited_sends_nothing(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello\n")
    for name, code, words in (
        ("missing", 2, "cannot read"),
        (".", 2, "it must be a file"),
        ("pipe", 2, "it must be a file"),
        ("empty", 1, "holds no trajectory"),
        ("text", 1, "text:1 is not a line of JSON"),
    ):
        assert audit(tmp_path / name, engine.url) == code
        captured = capsys.readouterr()
        assert words in captured.err and not captured.out and not engine.requests


def test_an_engine_that_is_away(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(file, f"http://127.0.0.1:{free_port()}") == 1
    assert "no engine at" in capsys.readouterr().err

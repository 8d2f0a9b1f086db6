"""`rollq audit` with an engine that gives the scores the test wants."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq_worker.audit.floor import TURNS
from rollq_worker.audit.report import Report
from rollq_worker.audit.scorer import Scorer
from tests.conftest import free_port
from tests.rollq_worker.audit.exported import record
from tests.rollq_worker.audit.scoring_engine import scored_or_sampled, scoring_engine
from tests.rollq_worker.engine.engine_servers import ScriptedEngine

RECORD = record(
    tokens=[5, 6, 7, 7, 7, 8],
    mask=[0, 0, 1, 1, 1, 1],
    logprobs=[0.0, 0.0, *[-0.5] * 4],
    sampling={},
)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with scoring_engine() as engine:
        engine.then = scored_or_sampled
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


def test_a_good_file(
    engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(file, engine.url) == 0
    shown = capsys.readouterr().out
    assert "r/g/0" in shown and shown.rstrip().endswith("verdict: ok")
    assert audit(file, engine.url, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == (
        "trajectories tokens skipped mean_abs p99_abs max_abs floor detectable shift classes "
        "faulty faults worst verdict".split()
    )
    assert found["floor"] == {"tokens": 256, "mean_abs": 0.0, "p99_abs": 0.0, "max_abs": 0.0}
    assert found["detectable"]["outliers"]["file"] == {"of": 4, "least": 3}
    assert (found["trajectories"], found["tokens"], found["mean_abs"], found["verdict"]) == (
        1,
        4,
        0.0,
        "ok",
    )


def test_a_bad_file(engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(file, logprobs=[0.0, 0.0, -0.9, -0.8, -0.8, -0.8])
    assert audit(file, engine.url) == 1
    shown = capsys.readouterr().out
    assert (
        "recorded -0.9000, scored -0.5000\n" in shown
        and "verdict: bad; 4 of all tokens (4) are off by" in shown
    )


def test_weights_by_another_name(
    engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, versions=[None, None] + ["step-4"] * 4)
    assert audit(file, engine.url) == 1
    shown = capsys.readouterr().out
    assert (
        "skipped: 4 tokens sampled by other weights" in shown
        and "verdict: incomplete; 0 of 4" in shown
    )
    assert not engine.bodies()
    assert audit(file, engine.url, "--versions", "step-3,step-4") == 0


def test_an_engine_that_does_not_report_its_weights(
    engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del engine.paths["/model_info"]
    assert audit(file, engine.url) == 2
    assert "name them with --versions" in capsys.readouterr().err


def test_the_login_of_an_engine_is_not_shown(
    engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.paths["/model_info"] = (401, {"error": "no"})
    assert audit(file, f"http://ops:s3cret@127.0.0.1:{engine.port}") == 1
    assert audit(file, f"http://ops:s3cret@127.0.0.1:{free_port()}") == 1
    shown = capsys.readouterr()
    assert (
        "answered 401" in shown.err
        and "no engine at" in shown.err
        and "s3cret" not in shown.out + shown.err
    )


def test_an_unknown_id_is_not_sent(
    engine: ScriptedEngine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, tokens=[5, 400000, 7, 7, 7, 8])
    assert audit(file, engine.url) == 1
    assert (
        "holds token id 400000, which the tokenizer of rollq does not know"
        in capsys.readouterr().err
    )
    assert not engine.bodies()
    write(file, tokens=[5, 6, 400000, 7, 7, 8])  # a model's padding id may well be sampled
    assert audit(file, engine.url) == 1
    assert "4 tokens in a trace with an id beyond the vocabulary" in capsys.readouterr().out
    assert not engine.bodies()


def test_an_engine_that_breaks(
    engine: ScriptedEngine,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollq_worker.commands.audit.PARALLEL_REQUESTS", 1)
    file.write_text(file.read_text() * 3)
    engine.answers = [scored_or_sampled] * (2 * TURNS + 2) + ["reset"]
    assert audit(file, engine.url) == 1
    captured = capsys.readouterr()
    assert (
        "the engine broke" in captured.err and "2 of 3 trajectories were compared" in captured.err
    )
    assert captured.out.count("r/g/0") == 2 and "verdict" not in captured.out


def test_an_interrupt_ends_all_requests_before_the_connections(
    engine: ScriptedEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(report: Report, result: Any) -> None:
        raise KeyboardInterrupt

    def close(scorer: Scorer) -> None:
        running.extend(t.name for t in threading.enumerate() if "ThreadPoolExecutor" in t.name)
        close_connections(scorer)

    running: list[str] = []
    close_connections = Scorer.close
    monkeypatch.setattr(Report, "add", interrupted)
    monkeypatch.setattr(Scorer, "close", close)
    file.write_text(file.read_text() * 50)
    assert audit(file, engine.url) == 130
    assert running == []


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

"""Single checks of the doctor: of engines and environments, and of a check that fails."""

from asyncio import CancelledError
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.errors import RollqError
from rollq.servers.health import Finding
from rollq_worker.commands.doctor.checks import Limited, check_one_engine
from rollq_worker.remote.http_client import NoResponse
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.conftest import free_port
from tests.rollq_worker.commands.doctor.conftest import Doctor
from tests.rollq_worker.engine.engine_servers import ScriptedEngine, reply, scripted_engine


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer()


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """One that tells its model and its token ids."""

    def tokenize(body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [7, *load_tokenizer().encode(body["prompt"])]}

    model = {"model_path": "some/model"}
    with scripted_engine(model_info=(200, model), tokenize=tokenize) as server:
        server.then = lambda body: reply([7], prompt_tokens=len(body["input_ids"]), id=body["rid"])
        yield server


def check(engine: ScriptedEngine, tokenizer: Tokenizer | None) -> tuple[str, str]:
    [finding] = check_one_engine(engine.url, tokenizer)
    assert bool(finding.remedy) == (finding.level != "ok")
    return finding.level.value, finding.says


def test_an_engine(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    level, says = check(engine, tokenizer)
    assert level == "ok" and says.startswith(f"{engine.url} serves some/model; it samples tokens")
    assert check(engine, None)[0] == "warn"  # there is no tokenizer to compare with


def test_an_engine_that_does_not_tell_its_ids(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    del engine.paths["/tokenize"]
    level, says = check(engine, tokenizer)
    assert level == "warn" and "its token ids were not compared" in says


def test_an_engine_without_logprobs(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    def bare(body: dict[str, Any]) -> dict[str, Any]:
        ids = body["input_ids"]
        return reply([7], prompt_tokens=len(ids), id=body["rid"], output_token_logprobs=None)

    engine.then = bare
    level, says = check(engine, tokenizer)
    assert level == "fail" and "the reply has no output_token_logprobs" in says


def test_an_engine_that_generates_nothing(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.then = (500, {"error": "broken"})
    level, says = check(engine, tokenizer)
    assert level == "fail" and "generated nothing: the engine answered 500" in says
    engine.paths["/ready"] = (503, b"")
    level, says = check(engine, tokenizer)
    assert level == "fail" and "it is paused" in says


def test_a_list_of_engines(
    doctor: Doctor, engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    line = ("--redis", redis_url, "--engine")
    (tmp_path / "empty").touch()
    _, report = doctor(*line, f"file:{tmp_path}/empty")
    assert report["checks"]["engine list"]["says"] == "no engine is listed"
    _, report = doctor(*line, f"file:{tmp_path}/none")
    assert "No such file" in report["checks"]["engine list"]["says"]
    (tmp_path / "one").write_text(engine.url)
    _, report = doctor(*line, f"file:{tmp_path}/one")
    assert "serves some/model" in report["checks"]["engine"]["says"]


def test_what_is_wrong_with_another_model_has_its_own_remedy(
    doctor: Doctor, engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").touch()
    away = f"http://127.0.0.1:{free_port()}"
    engines = f"large={engine.url};small={away};none=file:{tmp_path}/empty"
    monkeypatch.setenv("ROLLQ_MODEL_ENGINES", engines)
    _, report = doctor("--engine", engine.url)
    checks = report["checks"]
    assert checks["engine"]["status"] == checks["model large"]["status"] == "ok"
    for name in ("model small", "model none list"):
        assert checks[name]["status"] == "fail"
        assert checks[name]["next"].endswith("correct ROLLQ_MODEL_ENGINES")


def test_an_environment_that_does_not_exist(doctor: Doctor) -> None:
    code, report = doctor("--env", "nosuch:thing")
    found = report["checks"]["environment nosuch:thing"]
    assert code == 1 and "there is no environment 'nosuch:thing'" in found["says"]
    code, report = doctor("--env", "shop")
    assert report["checks"]["environment shop"]["tools"] > 3


@pytest.mark.parametrize(
    "error", [ValueError, RollqError, NoResponse, OSError, SystemExit, CancelledError]
)
def test_a_check_that_raises_ends_no_other_one_and_tells_no_password(
    error: type[BaseException],
) -> None:
    def fails() -> list[Finding]:
        raise error("redis://me:secret@h:1 went away")

    (found,) = Limited("it", fails, 60.0, "do this").findings()
    assert (found.name, found.level, found.remedy) == ("it", "fail", "do this")
    assert "redis://me:***@h:1 went away" in found.says


@pytest.mark.parametrize("words", ["boom", "bad@61f7 (bad.py:load): KeyError: 'x'", "is it? a=5"])
def test_the_words_of_an_error_stay(words: str) -> None:
    def fails() -> list[Finding]:
        raise RollqError(words)

    (found,) = Limited("it", fails, 60.0, "do this").findings()
    assert found.says == words


def test_a_package_that_is_missing_is_no_finding() -> None:
    def fails() -> list[Finding]:
        raise ModuleNotFoundError(name="kombu")

    with pytest.raises(ModuleNotFoundError):
        Limited("it", fails, 60.0, "do this").findings()


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--env", "shop", "--redis", "redis://127.0.0.1:1/0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    [place] = [n for n, line in enumerate(lines) if line.startswith("fail redis: no Redis at")]
    assert lines[place + 1].startswith("      next: start one with `rollq redis`")
    assert lines[-2] == "verdict: not ready: redis"
    assert lines[-1] == f"next: {lines[place + 1].split('next: ')[1]}"

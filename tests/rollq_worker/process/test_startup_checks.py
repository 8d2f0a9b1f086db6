"""A worker that cannot start says why in one line, and what to do about it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from rollq import cli
from rollq.errors import SettingsError
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.exchange import generate
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.process import startup_checks
from rollq_worker.process.shutdown import Shutdown
from rollq_worker.tokens.tokenizer import BUNDLED, load_tokenizer
from tests.conftest import free_port, redis_binary, started_redis
from tests.rollq_worker.engine.engine_servers import replaying, reply, scripted_engine

NO_REDIS = f"redis://127.0.0.1:{free_port()}/0"


@pytest.fixture
def worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Starts a worker in this process, which must fail; returns its exit code and its stderr."""
    # The test process keeps its signal handlers.
    monkeypatch.setattr(Shutdown, "install", lambda shutdown: None)
    for name in list(os.environ):
        if name.startswith("ROLLQ_"):
            monkeypatch.delenv(name)

    def run(**env: str) -> tuple[int, str]:
        for name, value in env.items():
            monkeypatch.setenv(f"ROLLQ_{name}", value)
        code = cli.main(["worker"])
        return code, capsys.readouterr().err

    return run


def error_line(text: str) -> str:
    """The one line that says why, after any warnings."""
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("rollq: ")]
    assert text.endswith(f"{line}\n")
    return line


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        ({"REDIS_URL": "http://x"}, 2, "expected redis://, rediss://, unix:// or sentinel://"),
        ({"REDIS_URL": NO_REDIS}, 1, "Start one with `rollq redis`"),
        ({"BROKER_URL": "nonsense"}, 2, "ROLLQ_BROKER_URL: not the address of a broker"),
        (
            {"BROKER_URL": "carrier-pigeon://x"},
            2,
            "No such transport: carrier-pigeon (redis:// or rediss://)",
        ),
        ({"BROKER_URL": NO_REDIS.replace("//", "//me:secret@")}, 1, "no broker at redis://me:***@"),
        ({"QUEUES": "a,a"}, 2, "ROLLQ_QUEUES must be names of queues, each once, not 'a,a'"),
        (
            {"CONCURRENCY": "3000000"},
            2,
            "3000000 slots (-c) need about 3000064 open files, and this process may open",
        ),
        (
            {"ALIVE_FILE": "/nonexistent/alive"},
            2,
            "ROLLQ_ALIVE_FILE: /nonexistent/alive cannot be touched",
        ),
        (
            {"ISOLATE": "shop,typo:*,tau3"},
            2,
            "ROLLQ_ISOLATE: there is no environment 'tau3'; there are harbor, shop, ",
        ),
        ({"TOKENIZER": "/nonexistent"}, 2, "tokenizer /nonexistent: no such directory"),
    ],
)
def test_a_wrong_setting(
    worker: Callable[..., tuple[int, str]],
    redis_url: str,
    env: dict[str, str],
    code: int,
    words: str,
) -> None:
    got, text = worker(**{"REDIS_URL": redis_url, **env})
    assert got == code
    assert words in error_line(text)
    assert "secret" not in text


def test_a_template_that_cannot_be_used(
    worker: Callable[..., tuple[int, str]], redis_url: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(BUNDLED, tmp_path / "model")
    (folder / "chat_template.jinja").write_text('{{ raise_exception("no") }}')
    code, text = worker(REDIS_URL=redis_url, TOKENIZER=str(folder))
    assert code == 2
    assert "ROLLQ_TOKENIZER: the chat template of" in error_line(text)
    assert str(folder) in text


@pytest.fixture(scope="module")
def misconfigured_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a Redis that evicts and forgets, with users who may do less than rollq needs."""
    port = free_port()
    folder = tmp_path_factory.mktemp("acl")
    (folder / "users.acl").write_text(
        "user default on nopass ~* &* +@all\n"
        "user nokeys on >p ~other* &* +@all\n"
        "user nobroker on >p ~rollq* &* +@all\n"
    )
    line = [redis_binary(), "--port", str(port), "--dir", str(folder), "--save", "", "--aclfile"]
    line += [str(folder / "users.acl"), "--maxmemory-policy", "allkeys-lru"]
    with started_redis(line, port) as process:
        yield f"127.0.0.1:{port}"
        process.kill()


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("nokeys:p", "Allow its user the keys rollq* and _kombu.*, all channels"),
        ("nobroker:p", "no broker at redis://nobroker:***@"),
    ],
)
def test_a_redis_user_without_permission(
    worker: Callable[..., tuple[int, str]], misconfigured_redis: str, user: str, words: str
) -> None:
    code, text = worker(REDIS_URL=f"redis://{user}@{misconfigured_redis}/0")
    assert code == 1
    assert words in error_line(text)


def test_an_unwise_redis_is_warned_of_and_left_as_it_is(
    misconfigured_redis: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(f"redis://{misconfigured_redis}/0") as connection:
        startup_checks.check(Settings(), connection)
        assert connection.dbsize() == 0
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "set it to noeviction" in caplog.text and "start it with --appendonly yes" in caplog.text


@pytest.mark.parametrize(
    ("model", "first", "then"),
    [
        ("", "", "nothing is claimed before one is ready (`rollq engine`, --engine URL)"),
        ("m", " of the model 'm'", "episodes that need it wait for it (ROLLQ_MODEL_ENGINES)"),
    ],
)
def test_a_missing_engine_is_only_warned_of(
    model: str, first: str, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Engines take minutes to load."""
    url = f"http://127.0.0.1:{free_port()}"
    client = EngineClient(url)
    startup_checks.check_engines([client], "the model's", model)
    client.close()
    assert f"no engine{first} is ready at {url} (" in caplog.text
    assert then in caplog.text


class TestTheFirstToken:
    """An engine that is ready is asked for one token, which shows what it is."""

    def warnings(self, url: str, caplog: pytest.LogCaptureFixture) -> list[str]:
        client = EngineClient(url, proof=VocabularyProof(load_tokenizer(None)))
        try:
            startup_checks.check_engines([client], "the model's")
        finally:
            client.close()
        return [record.message for record in caplog.records]

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ((404, {"detail": "Not Found"}), "answers 404"),
            ((405, {"detail": "Method Not Allowed"}), "answers 405"),
            ((422, {"error": "missing field `inputs`"}), "answers 422"),
            (
                (200, {"text": ["Order and more"]}),
                "answers something else: not a reply of /generate (KeyError",
            ),
            ((200, {"choices": [{"text": "said"}]}), "answers something else"),
            ((200, b"<html>"), "answers something else"),
            ((200, []), "answers something else"),
        ],
    )
    def test_another_server(
        self, caplog: pytest.LogCaptureFixture, answer: Any, words: str
    ) -> None:
        models = {"v1/models": (200, {"data": [{"id": "m", "max_model_len": 600}]})}
        with scripted_engine(health=(200, b""), **models) as engine:
            engine.then = answer
            with pytest.raises(
                SettingsError, match=f"{engine.url} is neither SGLang nor vLLM: POST /generate "
            ) as e:
                self.warnings(engine.url, caplog)
            assert words in str(e.value) and "\n" not in str(e.value)
            assert str(e.value).endswith(
                "; rollq needs SGLang's native API, or vLLM (docs/engine.md)"
            )

    def test_it_ends_the_worker(self, redis_url: str) -> None:
        with scripted_engine(then=(501, b"")) as engine:
            line = [
                sys.executable,
                "-m",
                "rollq",
                "worker",
                "--redis",
                redis_url,
                "--engine",
                engine.url,
            ]
            ended = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 2
        assert f"the server at {engine.url} is neither SGLang nor vLLM: POST /gen" in error_line(
            ended.stderr
        )

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ((401, {"error": "Unauthorized"}), "answered 401"),
            ((403, {"error": "Forbidden"}), "answered 403"),
            ((400, {"error": {"message": "too long"}}), "answered 400"),
            ((500, b""), "answered 500"),
            ((503, {"error": {"message": "full"}}), "answered 503"),
            ("reset", "Connection"),
            ("hang", "timed out"),
            (
                reply([], finish_reason={"type": "abort", "status_code": 500, "err_type": "X"}),
                "aborted the request",
            ),
        ],
    )
    def test_a_server_that_may_be_one_is_only_warned_of(
        self,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        answer: Any,
        words: str,
    ) -> None:
        monkeypatch.setattr(generate, "PROBE_TIMEOUT_S", 0.3)
        with scripted_engine() as engine:
            engine.then = answer if not isinstance(answer, dict) else (200, answer)
            [warning] = self.warnings(engine.url, caplog)
        assert (
            f"the engine at {engine.url} is ready, but generated nothing: " in warning
            and words in warning
        )

    def test_an_answer_that_broke_off_is_asked_for_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def token(body: dict[str, Any]) -> dict[str, Any]:
            return reply([7], prompt_tokens=len(body["input_ids"]), id=body["rid"])

        with scripted_engine((200, b'{"text": "sa'), token) as engine:
            assert self.warnings(engine.url, caplog) == []
            assert len(engine.bodies()) == 2
            assert engine.bodies()[0]["sampling_params"]["max_new_tokens"] == 1

    def test_the_replay_engine_answers(self, caplog: pytest.LogCaptureFixture) -> None:
        with replaying() as url:
            assert self.warnings(url, caplog) == []
            requests.post(f"{url}/pause_generation", json={"mode": "abort"}, timeout=10)
            [warning] = self.warnings(url, caplog)
            assert f"no engine is ready at {url} (it is paused)" in warning


@pytest.mark.parametrize(
    ("variable", "code", "says"),
    [
        ("ENV_FILES", "def load(variant:", "SyntaxError"),
        ("ENV_FILES", "raise OSError('no data')", r"OSError: no data"),
        ("ENV_FILES", "import sys; sys.exit(3)", "SystemExit: 3"),
        ("AGENT_FILES", "", "mine.py:play is a NoneType, not a function"),
        ("AGENT_FILES", "raise OSError('no data')", "OSError: no data"),
    ],
)
def test_a_file_that_cannot_be_loaded(
    variable: str,
    code: str,
    says: str,
    worker: Callable[..., tuple[int, str]],
    tmp_path: Path,
    redis_url: str,
) -> None:
    (tmp_path / "mine.py").write_text(code)
    part = "load" if variable == "ENV_FILES" else "play"
    exit_code, text = worker(REDIS_URL=redis_url, **{variable: f"{tmp_path}/mine.py:{part}"})
    assert exit_code == 2 and says in error_line(text)

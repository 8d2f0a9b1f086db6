"""A worker that cannot start says why in one line, and what to do about it."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollq import cli
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.process import startup_checks
from rollq_worker.process.shutdown import Shutdown
from rollq_worker.tokens.tokenizer import BUNDLED
from tests.conftest import free_port, redis_binary, started_redis

NO_REDIS = f"redis://127.0.0.1:{free_port()}/0"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Starts a worker in this process, which must fail; returns its exit code and its stderr."""
    monkeypatch.setattr(Shutdown, "install", lambda shutdown: None)  # the test process keeps its signal handlers
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
        ({"REDIS_URL": "http://x"}, 2, "expected redis://, rediss://, unix://, sentinel://"),
        ({"REDIS_URL": NO_REDIS}, 1, "start one with `rollq redis`"),
        ({"BROKER_URL": "nonsense"}, 2, "ROLLQ_BROKER_URL: not the address of a broker"),
        ({"BROKER_URL": "carrier-pigeon://x"}, 2, "No such transport: carrier-pigeon (redis:// or rediss://)"),
        ({"BROKER_URL": NO_REDIS.replace("//", "//me:secret@")}, 1, "no broker at redis://me:***@"),
        ({"BROKER_URL": "cluster://h"}, 2, "Celery cannot use a Redis Cluster as its broker"),
        ({"QUEUES": "a,a"}, 2, "ROLLQ_QUEUES must be names of queues, each once, not 'a,a'"),
        ({"QUEUES": "a b"}, 2, "ROLLQ_QUEUES must be names of queues, each once, not 'a b'"),
        ({"QUEUES": ","}, 2, "ROLLQ_QUEUES must be names of queues, each once, not ''"),
        ({"CONCURRENCY": "many"}, 2, "ROLLQ_CONCURRENCY must be a whole number of at least 1, not 'many'"),
        ({"USER_ENDPOINTS": "gpt=http://h/v1,key=abc"}, 2, "takes key_file=PATH and nothing else"),
        ({"ALIVE_FILE": "/nonexistent/alive"}, 2, "ROLLQ_ALIVE_FILE: /nonexistent/alive cannot be touched"),
        ({"ISOLATE": "shop,typo:*,tau3"}, 2, "ROLLQ_ISOLATE: there is no environment 'tau3'; there are shop, "),
        ({"TOKENIZER": "/nonexistent"}, 2, "tokenizer /nonexistent: no such directory"),
    ],
)
def test_a_wrong_setting(
    worker: Callable[..., tuple[int, str]], redis_url: str, env: dict[str, str], code: int, words: str
) -> None:
    got, text = worker(**{"REDIS_URL": redis_url, **env})
    assert got == code
    assert words in error_line(text)
    assert "secret" not in text


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "garbage", "tokenizer.json is not a tokenizer"),
        ("chat_template.jinja", '{{ raise_exception("no") }}', "ROLLQ_TOKENIZER: the chat template of"),
    ],
)
def test_a_tokenizer_that_cannot_be_used(
    worker: Callable[..., tuple[int, str]], redis_url: str, tmp_path: Path, file: str, content: str, words: str
) -> None:
    folder = shutil.copytree(BUNDLED, tmp_path / "model")
    (folder / file).write_text(content)
    code, text = worker(REDIS_URL=redis_url, TOKENIZER=str(folder))
    assert code == 2
    assert words in error_line(text)
    assert str(folder) in text


@pytest.fixture(scope="module")
def misconfigured_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a Redis that evicts and forgets, with users who may do less than rollq needs."""
    port = free_port()
    folder = tmp_path_factory.mktemp("acl")
    (folder / "users.acl").write_text(
        "user default on nopass ~* &* +@all\n"
        "user nokeys on >p ~other* &* +@all\n"
        "user noscripts on >p ~* &* +@all -evalsha\n"
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
        ("nokeys:p", "its user must be allowed the keys rollq* and _kombu.*, all channels"),
        ("noscripts:p", "no permissions to run the 'evalsha' command"),
        ("nobroker:p", "no broker at redis://nobroker:***@"),
        ("nokeys:wrong", "refuses this user or password"),
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


def test_a_missing_engine_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Engines take minutes to load."""
    url = f"http://127.0.0.1:{free_port()}"
    client = SGLangEngine(url)
    startup_checks.check_engines([client], "the model's")
    client.close()
    assert f"no engine at {url}: nothing is claimed before there is one (`rollq engine`, --engine URL)" in caplog.text

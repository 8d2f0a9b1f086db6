"""A worker that cannot start says why in one line, and what to do about it."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from rollq import cli
from rollq.ledger.connection import connect
from rollq.settings import Settings
from rollq_worker.process import startup_checks
from rollq_worker.process.celery_app import say_outages_shortly
from rollq_worker.process.shutdown import Drain
from rollq_worker.tokens import tokenizer
from tests.conftest import free_port, redis_binary, started_redis

NOBODY = f"redis://127.0.0.1:{free_port()}/0"
ASSETS = Path(tokenizer.__file__).parent / "assets" / "tokenizer"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Starts a worker in this process, which must fail; returns exit code and what it said."""
    monkeypatch.setattr(Drain, "install", lambda drain: None)  # a test's own signals stay as they are
    for name in list(os.environ):
        if name.startswith("ROLLQ_"):
            monkeypatch.delenv(name)

    def run(**env: str) -> tuple[int, str]:
        for name, value in env.items():
            monkeypatch.setenv(f"ROLLQ_{name}", value)
        code = cli.main(["worker"])
        return code, capsys.readouterr().err

    return run


def said(text: str) -> str:
    """The one line, whatever was warned of before it."""
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("rollq: ")]
    assert text.endswith(f"{line}\n")
    return line


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        ({"REDIS_URL": "http://x"}, 2, "expected redis://, rediss:// or unix://"),
        ({"REDIS_URL": "redis://127.0.0.1:70000/0"}, 2, "expected redis://HOST:PORT/DATABASE"),
        ({"REDIS_URL": NOBODY}, 1, "start one with `rollq redis`"),
        ({"BROKER_URL": "nonsense"}, 2, "ROLLQ_BROKER_URL: not the address of a broker"),
        ({"BROKER_URL": "carrier-pigeon://x"}, 2, "No such transport: carrier-pigeon (redis:// or rediss://)"),
        ({"BROKER_URL": NOBODY.replace("//", "//me:secret@")}, 1, "no broker at redis://me:***@"),
        ({"ENGINE_URL": "localhost"}, 2, "ROLLQ_ENGINE_URL: not an address like http://HOST:PORT"),
        ({"CONCURRENCY": "many"}, 2, "ROLLQ_CONCURRENCY must be a whole number of at least 1, not 'many'"),
        ({"CONCURRENCY": "0"}, 2, "ROLLQ_CONCURRENCY must be a whole number of at least 1"),
        ({"USER_ENDPOINTS": "gpt"}, 2, "ROLLQ_USER_ENDPOINTS: "),
        ({"USER_ENDPOINTS": "gpt=http://h/v1,key=abc"}, 2, "takes key_file=PATH and nothing else"),
        ({"ALIVE_FILE": "/nonexistent/alive"}, 2, "ROLLQ_ALIVE_FILE: /nonexistent/alive cannot be touched"),
        ({"ISOLATE": "shop,typo:*,tau3"}, 2, "ROLLQ_ISOLATE: there is no environment 'tau3'; there are shop, "),
        ({"TOKENIZER": "/nonexistent"}, 2, "tokenizer /nonexistent: no such directory"),
    ],
)
def test_a_setting_that_cannot_be(
    worker: Callable[..., tuple[int, str]], redis_url: str, env: dict[str, str], code: int, words: str
) -> None:
    got, text = worker(**{"REDIS_URL": redis_url, **env})
    assert got == code
    assert words in said(text)
    assert "secret" not in text


def files(folder: Path, **content: str | None) -> None:
    """The bundled tokenizer's files, other content in some of them."""
    for path in ASSETS.iterdir():
        name = path.name.split(".")[0]
        text = content.get(name, path.read_text()) if name in content else path.read_text()
        if text is not None:
            (folder / path.name).write_text(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"tokenizer": None}, "has no tokenizer.json"),
        ({"tokenizer": "garbage"}, "tokenizer.json is not a tokenizer"),
        ({"chat_template": None}, "no chat template"),
        ({"chat_template": "{% for %}"}, "the chat template is not valid Jinja: line 1"),
        ({"chat_template": '{{ raise_exception("no") }}'}, "ROLLQ_TOKENIZER: the chat template of"),
        ({"tokenizer_config": "[1"}, "tokenizer_config.json"),
    ],
)
def test_a_tokenizer_that_cannot_be_used(
    worker: Callable[..., tuple[int, str]], redis_url: str, tmp_path: Path, content: dict[str, str | None], words: str
) -> None:
    files(tmp_path, **content)
    code, text = worker(REDIS_URL=redis_url, TOKENIZER=str(tmp_path))
    assert code == 2
    assert words in said(text)
    assert str(tmp_path) in text


@pytest.fixture(scope="module")
def lax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a Redis that evicts and forgets, with users who may do less than rollq needs."""
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
        yield port
        process.kill()


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("nokeys:p", "its user must be allowed the keys rollq*, _kombu.* and unacked*"),
        ("noscripts:p", "no permissions to run the 'evalsha' command"),
        ("nobroker:p", "no broker at redis://nobroker:***@"),
        ("nokeys:wrong", "wants another user or password"),
    ],
)
def test_a_user_of_redis_who_may_not(worker: Callable[..., tuple[int, str]], lax: int, user: str, words: str) -> None:
    code, text = worker(REDIS_URL=f"redis://{user}@127.0.0.1:{lax}/0")
    assert code == 1
    assert words in said(text)


def test_what_is_unwise_is_warned_of(lax: int, caplog: pytest.LogCaptureFixture) -> None:
    connection = connect(f"redis://127.0.0.1:{lax}/0")
    startup_checks.check(Settings(), connection)
    connection.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "set it to noeviction" in caplog.text and "start it with --appendonly yes" in caplog.text
    assert connect(f"redis://127.0.0.1:{lax}/0").dbsize() == 0


def test_an_engine_that_is_not_there_is_waited_for(redis_url: str, tmp_path: Path) -> None:
    """In a process of its own; it must not be a failure, since engines take minutes to load."""
    url = f"http://127.0.0.1:{free_port()}"
    log = tmp_path / "log"
    with log.open("wb") as out:
        line = [sys.executable, "-m", "rollq", "worker", "-c", "2", "--redis", redis_url, "--engine", url]
        process = subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT)
    until = time.monotonic() + 120
    while ": ready" not in log.read_text():
        assert time.monotonic() < until and process.poll() is None, log.read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert (
        f"no engine at {url}: nothing is claimed before there is one (`rollq engine`, --engine URL)" in log.read_text()
    )


@pytest.mark.parametrize("command", ["redis", "engine"])
def test_a_port_in_use(command: str, redis_url: str, tmp_path: Path) -> None:
    port = redis_url.rpartition(":")[2].partition("/")[0]
    line = [sys.executable, "-m", "rollq", command, "--port", port]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert port in said(done.stderr) and "in use" in done.stderr


def test_an_environment_whose_package_is_missing_kills_the_job_and_says_what_to_install(redis_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollq", "doctor", "--redis", redis_url, "--env", "nosuch:thing", "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "there is no environment 'nosuch:thing'" in json.dumps(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("error", "traceback"), [(redis.ConnectionError("gone"), False), (ValueError("a bug"), True)], ids=["outage", "bug"]
)
def test_a_lost_connection_shows_no_traceback(error: Exception, traceback: bool):
    said = io.StringIO()
    logger = logging.Logger("celery")
    logger.addHandler(logging.StreamHandler(said))
    say_outages_shortly(logger)
    try:
        raise error
    except Exception:
        logger.exception("Couldn't ack")
    assert "Couldn't ack" in said.getvalue() and ("Traceback" in said.getvalue()) is traceback

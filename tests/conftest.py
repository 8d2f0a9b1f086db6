"""Shared fixtures: a real Redis server, started once a test session on a free loopback port."""

import gc
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from rollq.processes.embedded_redis import binary as redis_binary

# No deadline: the time of an example depends on the machine. A test that needs more examples asks
# for them.
settings.register_profile(
    "rollq", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rollq")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs this way. The processes under test would inherit it and ignore
    # Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
REPO = Path(__file__).resolve().parent.parent
OF_TRAINERS = (
    "rollq_integrations/test_trl.py",
    "rollq_integrations/test_trl_async.py",
    "rollq_integrations/test_trl_distillation.py",
    "rollq_integrations/test_trl_restarts.py",
    "examples/learn_shop",
    "e2e/test_trainer_page.py",
    "e2e/test_trl_examples.py",
    "contract/test_learn.py",
    "contract/test_trl.py",
)
"""Tests that import torch or a trainer. They have the mark `trainers`; `make test` does without
those packages. Where `make learn` has installed torch alone, they are left out.
"""
SLOW = (
    "contract/test_interruptions.py",
    "contract/test_several_engines.py",
    "rollq/evaluation/test_statistics.py",
    "rollq/servers/test_sentinel.py",
    "rollq_integrations/tau/test_tau2_2025_rewards.py",
    "rollq_worker/process/test_celery_worker.py",
    "rollq_worker/process/test_redis_outages.py",
    "rollq_worker/tokens/test_images.py",
    "rollq_worker/tokens/test_qwen_vocabulary.py",
)
"""Tests that take many seconds, most of them in processes of their own. What README and
docs/faults.md promise of these parts has a test marked `promise`; these run in `make test-all`.
"""
OF_VERIFIERS = ("rollq_integrations/verifiers", "e2e/test_verifiers.py")
"""Tests that import verifiers: `make test-verifiers`."""
OF_TRACKERS = ("rollq_integrations/trackers",)
"""Tests that import wandb, mlflow and trackio: `make test-trackers`."""
collect_ignore = [
    *([] if find_spec("trackio") else OF_TRACKERS),
    *([] if find_spec("trl") else OF_TRAINERS),
    *([] if find_spec("verifiers") else OF_VERIFIERS),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        where = item.nodeid.removeprefix("tests/")
        if where.startswith(OF_TRAINERS):
            item.add_marker(pytest.mark.trainers)
        if where.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = long_ones_first(items, processes)


def pytest_collection_finish() -> None:
    """Takes the collected tests out of the collector's sight, which would walk them all again and
    again.
    """
    gc.collect()
    gc.freeze()


def long_ones_first(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Each process of a parallel run gets so many neighbours. They begin with its share of the
    tests that take longest, because one of them that comes last keeps the others waiting.
    """
    long = [item for item in items if item.nodeid.startswith("tests/e2e/")]
    short = [item for item in items if not item.nodeid.startswith("tests/e2e/")]
    return [
        item
        for n in range(processes)
        for tests in (long, short)
        for item in _share(tests, n, processes)
    ]


def _share(tests: list[pytest.Item], number: int, of: int) -> list[pytest.Item]:
    return tests[len(tests) * number // of : len(tests) * (number + 1) // of]


PORTS = 1000
"""Number of ports for each process of a parallel run, from 12000 on."""
_given: set[int] = set()


def free_port() -> int:
    """A loopback port that stays free until it is used, and while its server is away.

    The kernel gives no such port to connections or to servers that take any port. Each process of a
    parallel run has its own range, and no port comes twice.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 12000 + worker % 8 * PORTS
    while True:
        port = random.SystemRandom().randrange(first, first + PORTS)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port


def started_redis(command: Sequence[str], port: int) -> "subprocess.Popen[bytes]":
    """Runs that Redis server. Returns it once it answers, and fails when it does not."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
        while process.poll() is None and time.monotonic() < until:
            try:
                client.ping()
            except redis.AuthenticationError:
                return process
            except redis.ConnectionError:  # also while it reads its file
                time.sleep(0.02)
            else:
                return process
    process.kill()
    process.wait()
    pytest.fail(f"{command[0]} did not come up")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis server that lives as long as the tests."""
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    command = [
        redis_binary(),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--save",
        "",
    ]
    process = started_redis(
        [*command, "--appendonly", "no", "--maxmemory-policy", "noeviction"], port
    )
    yield f"redis://127.0.0.1:{port}/0"
    process.kill()
    process.wait(60)


@pytest.fixture
def redis_url(redis_server: str) -> Iterator[str]:
    """The same server, emptied for this test."""
    client = redis.Redis.from_url(redis_server)
    client.flushall()
    client.close()
    yield redis_server


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real chat templates and golden encodings; on CI it must be there."""
    folder = Path(os.environ.get("ROLLQ_SHARED", REPO.parent / "shared"))
    if not (folder / "data" / "chat_templates").exists():
        if os.environ.get("CI"):
            pytest.fail(
                f"{folder} is missing: real chat templates and golden encodings are required on CI"
            )
        pytest.skip(f"no {folder}: this test needs real chat templates or golden encodings")
    return folder


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory with Qwen's vocabulary and the bundled chat template."""
    from tests.rollq_worker.tokens.qwen_vocabulary import CONFIG, TEMPLATE, qwen_spec

    folder = tmp_path_factory.mktemp("qwen")
    (folder / "tokenizer.json").write_bytes(qwen_spec())
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def chromium() -> str:
    """The browser on PATH, or the one that ROLLQ_CHROMIUM names."""
    found = os.environ.get("ROLLQ_CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUM)), None
    )
    if not found:
        pytest.fail(
            "no Chromium on PATH: `apt-get install chromium`, or name one in ROLLQ_CHROMIUM"
        )
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, and /dev/shm is small in containers.
        started = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()

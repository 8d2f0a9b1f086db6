"""A real Flower with deploy's settings, on a Redis with users, beside a worker that played rollouts
of every kind.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rollq import Client, Job
from tests.conftest import REPO, free_port
from tests.deploy.redis_users import ServerWithUsers
from tests.e2e.stack import FAULTY_SHOP, Stack

LOGIN = "operator:a long enough password"
RUN = "retail-17"
DONE, RETRIED, DEAD = 6, 1, 1
"""Numbers of jobs that end well at once, after an attempt that failed, and not at all."""
ATTEMPTS_OF_DEAD = 2


class Reply(NamedTuple):
    status: int
    url: str
    text: str


class Flower:
    """A Flower on loopback."""

    def __init__(self, folder: Path, redis_url: str, env: dict[str, str] | None = None) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        login = folder / "flower-login"
        login.write_text(LOGIN)
        port, self.log = self.url.rpartition(":")[2], folder / "flower.log"
        command = [sys.executable, "-m", "celery", "--quiet", "flower", "--conf=flowerconfig.py"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, f"--port={port}", "--address=127.0.0.1"],
                cwd=REPO / "deploy" / "flower",
                env={
                    **os.environ,
                    "ROLLQ_REDIS_URL": redis_url,
                    "FLOWER_BASIC_AUTH_FILE": str(login),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    **(env or {}),
                },
                stdout=out,
                stderr=out,
            )

    def wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + 90
        while True:
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            try:
                self.ask("/healthcheck")
                return
            except OSError:
                time.sleep(0.1)

    def ask(self, path: str, data: dict[str, Any] | None = None, login: str = "") -> Reply:
        body = urllib.parse.urlencode(data).encode() if data is not None else None
        headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, body, headers), timeout=30
            ) as reply:
                return Reply(reply.status, reply.url, reply.read().decode())
        except urllib.error.HTTPError as e:
            return Reply(e.code, e.url, e.read().decode())

    def tasks(self, search: str = "") -> list[dict[str, Any]]:
        """What the table of the page of tasks holds."""
        query = {
            "draw": 1,
            "start": 0,
            "length": 100,
            "search[value]": search,
            "order[0][column]": 0,
        }
        query |= {"order[0][dir]": "desc", "columns[0][data]": "received"}
        rows: list[dict[str, Any]] = json.loads(self.ask("/tasks/datatable", query, LOGIN).text)[
            "data"
        ]
        return rows

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ask("/workers?json=1", login=LOGIN).text)[
            "data"
        ]
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class Scene(NamedTuple):
    stack: Stack
    flower: Flower
    redis_url: str
    """For another Flower."""


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """All rollouts have ended, and Flower has heard of it."""
    server = ServerWithUsers(folder)
    stack, flower = Stack(folder, server.url_of("worker")), Flower(folder, server.url_of("flower"))
    try:
        flower.wait()
        stack.engine("--mistakes", "0.3")
        worker = stack.start("worker", "-c", "4", "--engine", stack.engine_url, env=FAULTY_SHOP)
        stack.wait(lambda: b"ready" in worker.log.read_bytes(), 150, "the worker")  # type: ignore[attr-defined]
        _play(stack, folder)
        ends = DONE + 2 * RETRIED + ATTEMPTS_OF_DEAD * DEAD
        stack.wait(lambda: _ended(flower) >= ends, 60, "Flower's rows")
        yield Scene(stack, flower, server.url_of("flower"))
    finally:
        stack.close()
        flower.close()
        server.kill()


def _play(stack: Stack, folder: Path) -> None:
    fault = {"env": "faulty", "env_args": {"fault": "error"}, "seed": 1}
    with Client(stack.redis_url, run=RUN) as client:
        client.submit([Job(env="shop", task=n, group=f"g{n:04}") for n in range(DONE)])
        once = {**fault, "env_args": {"fault": "error", "once": str(folder / "once")}}
        client.submit([Job(task=40, group="g0040", **once)])  # type: ignore[arg-type]
        client.submit([Job(task=41, group="g0041", **fault)])  # type: ignore[arg-type]
        client.seal()
    stack.wait(
        lambda: not {stack.stats(RUN)[name] for name in ("queued", "leased")} - {0}, 120, "the end"
    )


def _ended(flower: Flower) -> int:
    return sum(row["state"] in ("SUCCESS", "FAILURE", "RETRY") for row in flower.tasks())

"""Environments in their own processes: the same episodes, and nothing that they do harms the
worker.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from rollq.env import Action
from rollq.errors import (
    EnvironmentFailure,
    FailureClass,
    Fenced,
    ForOtherWorkers,
    JobFailure,
    UserFailure,
)
from rollq.ledger.ledger import Ledger
from rollq_worker.environments import domain
from rollq_worker.process.attempts import isolation as isolation_module
from rollq_worker.process.attempts import time_limits
from rollq_worker.process.attempts.isolation import Isolation
from rollq_worker.process.attempts.leases import Leases
from rollq_worker.process.attempts.time_limits import TimedEnvironment
from rollq_worker.users.scripted import ScriptedUser
from tests.conftest import REPO
from tests.processes import alive
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import claim
from tests.waiting import until

SITE = REPO / "tests" / "e2e" / "site"


@pytest.fixture(scope="module")
def isolation() -> Iterator[Isolation]:
    from multiprocessing import resource_tracker

    was = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), was or ""])
    isolation = Isolation(["shop", "faulty"])
    isolation.start()
    yield isolation
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    if was is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = was


def nothing() -> None:
    pass


def test_names_and_patterns() -> None:
    isolation = Isolation(["tau2:*", "mine"])
    assert [isolation.applies(name) for name in ("tau2:retail", "mine", "shop", "mine2")] == [
        True,
        True,
        False,
        False,
    ]
    assert not Isolation([]).applies("shop")


def play(environment: Any, task: Any) -> tuple[list[str], float]:
    user = ScriptedUser(task.opening, task.replies)
    seen = [environment.reset(user)]
    for move in task.moves:
        observation = environment.step(move)
        seen.append(observation.text)
    assert observation.done
    return seen, environment.grade().reward


def test_a_file_that_is_not_here_leaves_the_job_to_other_workers(isolation: Isolation) -> None:
    opened = isolation.open("game@0123456789ab", "train", 0, {}, nothing)
    with pytest.raises(ForOtherWorkers, match="there is no such file here"), opened:
        pass


@pytest.mark.parametrize("index", [0, 3])
def test_an_episode_is_the_same_and_its_process_ends_with_it(
    isolation: Isolation, index: int
) -> None:
    shop = domain("shop")
    task = shop.task("train", index)
    with isolation.open("shop", "train", index, {}, nothing) as environment:
        here = shop.open("train", index, {})
        assert list(environment.tools) == list(here.tools)
        assert (
            play(environment, task) == play(here, task)
            and environment.system_prompt == here.system_prompt
        )
        pid = environment._process.pid
        assert alive(pid)
    until(lambda: not alive(pid))


def test_failures_keep_their_class_and_traceback(isolation: Isolation) -> None:
    with (
        pytest.raises(JobFailure, match="split 'train' has tasks"),
        isolation.open("shop", "train", 10**9, {}, nothing),
    ):
        pass
    with isolation.open("shop", "train", 0, {}, nothing) as environment:
        with pytest.raises(EnvironmentFailure, match="grade") as caught:
            environment.grade()
        assert "Traceback" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", "ZeroDivisionError: the environment broke"),
        ("memory", "MemoryError"),
        ("quit", "SystemExit: 3"),
        ("panic", "Panic: a panic in Rust code"),
        ("recursion", "RecursionError"),
        ("flood", r"an answer of \d+ bytes; at most 16777216 are allowed"),
        ("killed", "its process ended with exit code 137"),
    ],
)
def test_what_would_end_a_worker_ends_one_attempt(
    isolation: Isolation, fault: str, reason: str
) -> None:
    task = domain("shop").task("train", 0)
    with isolation.open("faulty", "train", 0, {"fault": fault}, nothing) as environment:
        environment.reset(ScriptedUser(task.opening, task.replies))
        environment.step(task.moves[0])
        with pytest.raises(EnvironmentFailure, match=reason):
            environment.step(task.moves[1])


def test_an_opening_comes_as_it_is(isolation: Isolation) -> None:
    with isolation.open("faulty", "train", 0, {"opening": None}, nothing) as environment:
        assert environment.reset(ScriptedUser("Hello.", ["Bye."])) is None  # which the loop refuses


@pytest.mark.parametrize("fault", ["sleep", "loop", "freeze"])
def test_the_process_of_a_step_past_its_limit_is_killed(
    isolation: Isolation, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    leases, task = Leases(threading.Event()), domain("shop").task("train", 0)
    leases.start()
    with (
        leases.hold(ledger, claim(ledger)) as attempt,
        isolation.open("faulty", "train", 0, {"fault": fault}, attempt.check) as isolated,
    ):
        environment = TimedEnvironment(isolated, attempt.time_limits, 60.0, isolated.tools)
        environment.reset(ScriptedUser(task.opening, task.replies))
        environment.step(task.moves[0])
        pid = isolated._process.pid
        monkeypatch.setattr(time_limits, "STEP_LIMIT_S", 0.5)
        with pytest.raises(Fenced):
            environment.step(task.moves[1])
    leases.stop()
    assert not alive(pid)
    state = reader(ledger).job("r/g0/0")
    assert state is not None and state.failures == {FailureClass.ENV: 1}
    assert state.reason.startswith("nothing in 0.5 s while waiting for environment.step(")


@pytest.mark.parametrize(
    ("fault", "error"), [("", None), ("error", EnvironmentFailure), ("user", UserFailure)]
)
def test_an_environment_is_closed_at_the_end_however_it_comes(
    isolation: Isolation, tmp_path: Path, fault: str, error: type[Exception] | None
) -> None:
    closed, args = tmp_path / "closed", {"fault": fault} if fault == "error" else {}
    with isolation.open(
        "faulty", "train", 0, {**args, "closed": str(closed)}, nothing
    ) as environment:
        environment.reset(FailingUser(UserFailure("the endpoint is gone")))
        environment.step(Action("no_such_tool"))
        with pytest.raises(error) if error else nullcontext():
            environment.step(
                Action("respond", {"content": "hi"}) if fault == "user" else Action("no_such_tool")
            )
        assert fault == "error" or not closed.exists()
    assert closed.exists()


def test_a_step_that_hangs_is_killed_although_it_cannot_be_closed(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation_module, "CLOSE_LIMIT_S", 0.2)
    attempt_lost = threading.Event()

    def check() -> None:
        if attempt_lost.is_set():
            raise Fenced("r/g/0")

    args = {"fault": "sleep", "closed": str(tmp_path / "closed")}
    with pytest.raises(Fenced), isolation.open("faulty", "train", 0, args, check) as environment:
        environment.reset(FailingUser(UserFailure("unused")))
        environment.step(Action("no_such_tool"))
        pid = environment._process.pid
        attempt_lost.set()
        environment.step(Action("no_such_tool"))
    assert not alive(pid)


class FailingUser:
    """Greets, and then raises this."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def open(self) -> str:
        return "hello"

    def reply(self, message: str) -> str:
        raise self.error

    def recall(self, heard: str | None, reply: str) -> None:
        pass


HELD = """
import sys
from multiprocessing import forkserver
from threading import Thread
from rollq_worker.environments import domain
from rollq_worker.process.attempts.isolation import Isolation
from rollq_worker.users.scripted import ScriptedUser
from tests.processes import alive
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import claim

isolation = Isolation(["faulty"])
isolation.start()
task = domain("shop").task("train", 0)

def play():
    with isolation.open("faulty", "train", 0, {"fault": "freeze"}, lambda: None) as environment:
        environment.reset(ScriptedUser(task.opening, task.replies))
        environment.step(task.moves[0])
        print(f"{forkserver._forkserver._forkserver_pid} {environment._process.pid}\\n", end="", \
flush=True)
        environment.step(task.moves[1])

for _ in range(2):
    Thread(target=play).start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's way is Linux's")
def test_no_process_outlives_a_killed_worker() -> None:
    """Not even those whose interpreter is locked, which see nothing any more."""
    path = os.pathsep.join([str(SITE), *filter(None, sys.path)])
    worker = subprocess.Popen(
        [sys.executable, "-c", HELD],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert worker.stdout
    pids = {int(pid) for _ in range(2) for pid in worker.stdout.readline().split()}
    try:
        assert len(pids) == 3
        time.sleep(0.5)  # they reach the operation that does not end
        assert all(alive(pid) for pid in pids)
        worker.kill()
        worker.wait()
        until(lambda: not any(map(alive, pids)))
    finally:
        worker.kill()
        for pid in filter(alive, pids):  # they hold the pipe open as well
            os.kill(pid, 9)
        worker.communicate()


def test_a_restarted_fork_server_outlives_the_thread_that_asked_for_it(
    isolation: Isolation,
) -> None:
    server = forkserver._forkserver  # type: ignore[attr-defined]
    was = server._forkserver_pid
    os.kill(was, 9)
    until(lambda: not alive(was))
    task = domain("shop").task("train", 0)
    opened = isolation.open("shop", "train", 0, {}, nothing)
    with ThreadPoolExecutor(1) as pool:
        environment = pool.submit(opened.__enter__).result()
    try:
        time.sleep(0.2)
        assert server._forkserver_pid != was
        assert play(environment, task) == play(domain("shop").open("train", 0, {}), task)
    finally:
        opened.__exit__(None, None, None)

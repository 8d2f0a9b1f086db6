"""Environments in processes of their own: the same episodes, and nothing that they do harms the worker."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq_worker.environments import domain
from rollq_worker.failures import Drained
from rollq_worker.process import isolation as isolation_module
from rollq_worker.process.isolation import Isolation
from rollq_worker.protocols import Action
from rollq_worker.users.scripted import ScriptedUser
from tests.clock import Clock
from tests.processes import alive

SITE = Path(__file__).parent.parent / "e2e" / "site"


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
    assert [isolation.applies(name) for name in ("tau2:retail", "mine", "shop", "mine2")] == [True, True, False, False]
    assert not Isolation([]).applies("shop")


def play(environment: Any, task: Any) -> tuple[list[str], float]:
    user = ScriptedUser(task.opening, task.replies)
    seen = [environment.reset(user)]
    for move in task.moves:
        observation = environment.step(move)
        seen.append(observation.text)
    assert observation.done
    return seen, environment.grade().reward


@pytest.mark.parametrize("index", [0, 3])
def test_an_episode_is_the_same(isolation: Isolation, index: int) -> None:
    shop = domain("shop")
    task = shop.task("train", index)
    with isolation.open("shop", "train", index, {}, nothing) as environment:
        here = shop.open("train", index, {})
        assert list(environment.tools) == list(here.tools)
        assert play(environment, task) == play(here, task) and environment.system_prompt == here.system_prompt


def test_its_failures_are_what_they_were(isolation: Isolation) -> None:
    with (
        pytest.raises(JobFailure, match="split 'train' has tasks"),
        isolation.open("shop", "train", 10**9, {}, nothing),
    ):
        pass
    with isolation.open("shop", "train", 0, {}, nothing) as environment:
        with pytest.raises(EnvironmentFailure, match="grade") as caught:
            environment.grade()
        assert "Traceback" in str(caught.value.__cause__)


@pytest.fixture
def faulty(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens a faulty episode and takes it to its second step."""
    monkeypatch.setattr(isolation_module, "CHECK_S", 0.05)
    task = domain("shop").task("train", 0)

    def fail(fault: str, check: Any = nothing, limit_s: float = isolation_module.STEP_S) -> None:
        with isolation.open("faulty", "train", 0, {"fault": fault}, check) as environment:
            environment.reset(ScriptedUser(task.opening, task.replies))
            environment.step(task.moves[0])
            monkeypatch.setattr(isolation_module, "STEP_S", limit_s)
            environment.step(task.moves[1])

    return fail


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", "ZeroDivisionError: the environment broke"),
        ("memory", "MemoryError"),
        ("quit", "SystemExit: 3"),
        ("panic", "Panic: a panic in Rust code"),
        ("recursion", "RecursionError"),
        ("flood", r"an answer of \d+ bytes; 16777216 may be had"),
        ("killed", "its process ended with exit code 137"),
    ],
)
def test_what_would_have_ended_the_worker_ends_one_attempt(faulty: Any, fault: str, reason: str) -> None:
    with pytest.raises(EnvironmentFailure, match=reason):
        faulty(fault)


@pytest.mark.parametrize("fault", ["sleep", "loop", "freeze"])
def test_what_does_not_return_is_killed(faulty: Any, fault: str) -> None:
    with pytest.raises(EnvironmentFailure, match=r"environment\.step\(.*\): nothing in 0.5 s; its process is killed"):
        faulty(fault, limit_s=0.5)


def test_waiting_for_it_ends_when_the_attempt_must(faulty: Any) -> None:
    began: list[float] = []

    def check() -> None:
        began.append(time.monotonic())
        if began[-1] - began[0] > 0.3:
            raise Drained("stopping")

    with pytest.raises(Drained):
        faulty("freeze", check)


def test_the_users_time_does_not_count_and_its_failure_is_its_own(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation_module, "time", clock := Clock())

    class Slow:
        def open(self) -> str:
            clock.ahead += 2 * isolation_module.STEP_S
            return "hello"

        def reply(self, message: str) -> str:
            raise UserFailure("the endpoint is gone")

        def recall(self, heard: str | None, said: str) -> None:
            pass

    with isolation.open("shop", "train", 0, {}, nothing) as environment:
        assert environment.reset(Slow()) == "hello"
        with pytest.raises(UserFailure, match="the endpoint is gone"):
            environment.step(Action("respond", {"content": "hi"}))


def test_what_it_says_to_its_user_is_bounded_too(isolation: Isolation) -> None:
    class Deaf:
        def open(self) -> str:
            return "hello"

        def reply(self, message: str) -> str:
            pytest.fail("it should not hear that")

        def recall(self, heard: str | None, said: str) -> None:
            pass

    with isolation.open("shop", "train", 0, {}, nothing) as environment:
        environment.reset(Deaf())
        with pytest.raises(EnvironmentFailure, match=r"an answer of \d+ bytes; 16777216 may be had"):
            environment.step(Action("respond", {"content": "x" * (1 << 24)}))


def test_its_process_ends_with_the_block(isolation: Isolation) -> None:
    with isolation.open("shop", "train", 0, {}, nothing) as environment:
        pid = environment._process.pid
        os.kill(pid, 0)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("it is still there")


HELD = """
import sys
from multiprocessing import forkserver
from threading import Thread
from rollq_worker.process import isolation as module
from rollq_worker.environments import domain
from rollq_worker.process.isolation import Isolation
from rollq_worker.users.scripted import ScriptedUser
from tests.processes import alive

module.TIED = module.TIED and sys.argv[1] == "tied"
isolation = Isolation(["faulty"])
isolation.start()
task = domain("shop").task("train", 0)

def play():
    with isolation.open("faulty", "train", 0, {"fault": "freeze"}, lambda: None) as environment:
        environment.reset(ScriptedUser(task.opening, task.replies))
        environment.step(task.moves[0])
        print(f"{forkserver._forkserver._forkserver_pid} {environment._process.pid}\\n", end="", flush=True)
        environment.step(task.moves[1])

for _ in range(2):
    Thread(target=play).start()
"""


@pytest.mark.parametrize("how", ["tied", "watched"])
def test_none_outlives_a_worker_that_is_killed(how: str) -> None:
    """Not even those that hold the interpreter and see nothing any more."""
    path = os.pathsep.join([str(SITE), *filter(None, sys.path)])
    worker = subprocess.Popen(
        [sys.executable, "-c", HELD, how], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert worker.stdout
    pids = {int(pid) for _ in range(2) for pid in worker.stdout.readline().split()}
    try:
        assert len(pids) == 3
        time.sleep(0.5)  # they reach the operation that does not end
        assert all(alive(pid) for pid in pids)
        worker.kill()
        worker.wait()
        until = time.monotonic() + 60
        while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < until:
            time.sleep(0.02)
        assert not left
    finally:
        worker.kill()
        for pid in filter(alive, pids):  # they hold the pipe open as well
            os.kill(pid, 9)
        worker.communicate()


def test_a_fork_server_that_a_thread_had_to_start_again_outlives_the_thread(isolation: Isolation) -> None:
    server = forkserver._forkserver  # type: ignore[attr-defined]
    was = server._forkserver_pid
    os.kill(was, 9)
    while alive(was):
        time.sleep(0.02)
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

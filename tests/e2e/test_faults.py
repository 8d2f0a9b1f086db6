"""What a worker does when it is told to stop and when something breaks under it; all with real processes."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import redis

from rollq import Budget, Client, Finish, Job, Sampled
from rollq.ledger.keys import QUEUE, Keys
from rollq.processes.embedded_redis import command
from rollq.wire.codec import decode_event
from tests.conftest import free_port, started_redis
from tests.e2e.conftest import CALM_S, Stack, stop
from tests.e2e.test_worker import collect
from tests.stalls import Stalls

HERE = Path(__file__).parent
LEASE_S = 15.0


class Store:
    """A Redis of our own, that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        self.process = started_redis(command(self.port, self.folder), self.port)

    def stop(self, number: int) -> None:
        self.process.send_signal(number)
        if number != signal.SIGSTOP:
            self.process.wait(60)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.process.kill()
    store.process.wait(60)


@pytest.fixture
def own(tmp_path: Path, store: Store) -> Iterator[Stack]:
    """A stack on that Redis."""
    stack = Stack(tmp_path, store.url)
    yield stack
    stack.close()


class Hung:
    """A server that takes every POST and never answers; nothing else is there."""

    def __init__(self) -> None:
        self.asked = 0
        self.over = threading.Event()
        hung = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.endswith(("/generate", "/completions")):
                    hung.asked += 1
                    hung.over.wait(300)
                self.send_error(404)

            def do_GET(self) -> None:
                self.send_error(404)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def hung() -> Iterator[Hung]:
    server = Hung()
    yield server
    server.close()


def submit(stack: Stack, run: str, jobs: int, *, first: int = 0, group: str = "g", **job) -> None:
    """So many groups of one."""
    with Client(stack.redis_url, run=run) as client:
        for task in range(first, first + jobs):
            client.submit([Job(**{"env": "shop", "task": task, "group": f"{group}{task}", **job})], ahead=1000)


def seal(stack: Stack, run: str) -> None:
    with Client(stack.redis_url, run=run) as client:
        client.seal()


def check_whole(stack: Stack, run: str, jobs: int) -> dict:
    """Every job is done and delivered once."""
    seal(stack, run)
    received = collect(stack, run)
    stats = stack.stats(run)
    assert len(received) == len(set(received)) == jobs, f"{stats}\n{stack.logs()}"
    counted = {name: stats[name] for name in ("submitted", "done", "dead", "delivered", "duplicates", "leased")}
    assert counted == {
        "submitted": jobs, "done": jobs, "dead": 0, "delivered": jobs, "duplicates": 0, "leased": 0
    }  # fmt: skip
    return stats


class TestDrain:
    def test_many_running_generations_and_a_stalled_user(self, stack: Stack, hung: Hung):
        stack.engine("--latency", "30")
        submit(stack, "stalled", 8, user={"kind": "openai", "endpoint": "slow", "model": "m"})
        submit(stack, "many", 264, budget=Budget(deadline_s=600.0))
        worker = stack.start(
            "worker", "-c", "256", "--engine", stack.engine_url, env={"ROLLQ_USER_ENDPOINTS": f"slow={hung.url}"}
        )
        broker = redis.Redis.from_url(stack.redis_url)
        keys = [Keys(run).leased for run in ("many", "stalled")]
        stack.wait(lambda: sum(map(broker.zcard, keys)) == 256 and hung.asked, 300, "256 leases")
        time.sleep(3)  # so that most replies have begun
        calm = stop(worker)
        many, stalled = stack.stats("many"), stack.stats("stalled")
        assert not many["failures"] and not stalled["failures"]
        if calm:
            assert (many["leased"], stalled["leased"]) == (0, 0), stack.logs()
            assert broker.llen(QUEUE) >= 256
        broker.close()
        with Client(stack.redis_url, run="many") as client:
            pieces = [
                event
                for task in range(264)
                for blob in client.ledger.journal(f"many/g{task}/0")[1:]
                if isinstance(event := decode_event(blob, f"many/g{task}/0"), Sampled)
            ]
        partial = [piece for piece in pieces if piece.finish is Finish.ABORT]
        print(f"{len(partial)} partial turns of {sum(len(p.ids) for p in partial)} tokens")
        assert len(partial) > (100 if calm else 0) and all(piece.ids for piece in partial)

    def test_behind_a_router_the_turn_in_flight_is_dropped(self, stack: Stack, hung: Hung):
        submit(stack, "router", 8)
        worker = stack.worker(8, engine_url=hung.url)
        stack.wait(lambda: hung.asked == 8, 150, "eight requests")
        calm = stop(worker)
        stats = stack.stats("router")
        assert (stats["leased"], stats["queued"], stats["released"]) == (0, 8, 8) or not calm
        assert not stats["failures"]

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "frozen"])
    def test_redis_is_away(self, own: Stack, store: Store, how: int):
        own.engine("--latency", "30")
        submit(own, "away", 16)
        worker = own.worker(16)
        own.wait(lambda: own.stats("away")["leased"] == 16, 150, "16 leases")
        store.stop(how)
        stop(worker)

    def test_sigint_does_the_same_and_a_second_signal_leaves_at_once(self, stack: Stack, hung: Hung):
        stack.engine("--latency", "30")
        submit(stack, "int", 8)
        first = stack.worker(4)
        second = stack.worker(4)
        stack.wait(lambda: stack.stats("int")["leased"] == 8, 150, "eight leases")
        calm = stop(first, signal.SIGINT)
        stats = stack.stats("int")
        assert (stats["leased"], stats["released"]) == (4, 4) or stats["leased"] == 8 or not calm
        submit(stack, "stall", 4, user={"kind": "openai", "endpoint": "slow", "model": "m"})
        third = stack.start(
            "worker", "-c", "12", "--engine", stack.engine_url, env={"ROLLQ_USER_ENDPOINTS": f"slow={hung.url}"}
        )
        stack.wait(lambda: hung.asked, 150, "a stalled user")
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGQUIT, signal.SIGCONT):  # both, however long this takes
            third.send_signal(number)
        assert third.wait(60) == 1
        said = third.log.read_bytes()  # type: ignore[attr-defined]
        assert b"stopping" in said and b"second signal" in said
        second.kill()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
    def test_before_it_is_ready(self, tmp_path: Path, number: int):
        # No Redis is there, so that it never becomes ready.
        stack = Stack(tmp_path, f"redis://127.0.0.1:{free_port()}/0")
        code = """
from rollq.settings import Settings
from rollq_worker.process import celery_app
from rollq_worker.process import startup_checks

check = startup_checks.check

def begun(*args):
    print("begun", flush=True)
    check(*args)

startup_checks.check = begun
celery_app.main(Settings.from_env())
"""
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "ROLLQ_REDIS_URL": stack.redis_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        stop(process, number)
        process.stdout.close()


def test_a_task_that_starts_while_draining_goes_back(stack: Stack, hung: Hung):
    """The engine is away, so that every slot holds a message that is not claimed yet."""
    submit(stack, "bounce", 8)
    worker = stack.worker(4, engine_url=f"http://127.0.0.1:{free_port()}")
    broker = redis.Redis.from_url(stack.redis_url)
    stack.wait(lambda: broker.llen(QUEUE) == 4, 150, "four messages taken")
    calm = stop(worker)
    assert broker.llen(QUEUE) >= 8 or not calm
    broker.close()
    assert stack.stats("bounce")["claims"] == 0


def test_a_worker_with_200_jobs_is_killed(stack: Stack):
    stack.engine("--latency", "30")
    submit(stack, "kill", 200, budget=Budget(deadline_s=600.0))
    victim = stack.worker(200)
    stack.wait(lambda: stack.stats("kill")["leased"] == 200, 150, "200 leases")
    submit(stack, "other", 1)
    stack.worker(1)
    stack.wait(lambda: stack.stats("other")["leased"] == 1, 150, "another worker")
    with Stalls() as stalls:
        victim.kill()
        killed = time.monotonic()
        broker = redis.Redis.from_url(stack.redis_url)
        stack.wait(lambda: broker.zcard(Keys("kill").leased) == 0, 150, "all leases to expire")
        stack.wait(lambda: broker.llen(QUEUE) >= 200, 150, "all jobs to be published")
        took = time.monotonic() - killed
        broker.close()
    print(f"200 jobs back after {took:.1f} s")
    assert took < LEASE_S + 5 or stalls.seconds > CALM_S
    stats = stack.stats("kill")
    assert (stats["queued"], stats["failures"]) == (200, {"worker": 200})


class TestEngine:
    def test_an_outage_longer_than_the_deadline(self, stack: Stack):
        engine = stack.engine("--latency", "30")
        submit(stack, "outage", 8, budget=Budget(deadline_s=20.0))
        stack.worker(8)
        stack.wait(lambda: stack.stats("outage")["leased"] == 8, 150, "eight leases")
        engine.kill()
        engine.wait(60)
        time.sleep(25)
        stack.start("engine", "--port", stack.engine_url.rsplit(":", 1)[1])
        stats = check_whole(stack, "outage", 8)
        assert not stats["failures"], stack.logs()

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_job_that_kills_engines_is_found(self, stack: Stack, workers: int):
        port = free_port()
        stack.engine_url = f"http://127.0.0.1:{port}"
        task = 7
        text = _opening(task)
        over = threading.Event()
        deaths = []

        def supervise() -> None:
            while not over.is_set():
                engine = subprocess.Popen(
                    [sys.executable, str(HERE / "poisonous_engine.py"), str(port), text, "0.3"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                while engine.poll() is None and not over.is_set():
                    time.sleep(0.05)
                deaths.append(time.monotonic())
                engine.kill()
                engine.wait()

        supervisor = threading.Thread(target=supervise)
        supervisor.start()
        try:
            submit(stack, "poison", 21)
            for _ in range(workers):
                stack.worker(21 // workers + 1)
            stack.wait(lambda: stack.stats("poison")["done"] == 20, 300, "the innocent jobs")
            stack.wait(lambda: stack.stats("poison")["dead"] == 1, 150, "the poison to be found")
        finally:
            over.set()
            supervisor.join()
        stats = stack.stats("poison")
        print(f"{len(deaths) - 1} engines died")
        assert stats["failures"] == {"job": 1}, stack.logs()
        with Client(stack.redis_url, run="poison") as client:
            (letter,) = client.ledger.dead()
        assert letter.job_id == f"poison/g{task}/0" and letter.failure == "job"
        assert "kills engines" in letter.reason


def _opening(task: int) -> str:
    from rollq_worker.environments import domain

    return domain("shop").task("train", task).opening


class TestSteps:
    @pytest.fixture
    def site(self) -> dict[str, str]:
        path = os.pathsep.join([str(HERE / "site"), os.environ.get("PYTHONPATH", "")])
        return {"PYTHONPATH": path}

    def test_a_step_that_fails_costs_its_job_one_attempt(self, stack: Stack, site: dict[str, str], tmp_path: Path):
        faults = ("error", "memory", "quit", "panic", "recursion", "flood", "chatter")
        stack.engine("--latency", "0.2")
        for task, fault in enumerate(faults):
            args = {"fault": fault, "once": str(tmp_path / fault)}
            submit(stack, "step", 1, first=task, env="faulty", env_args=args)
        submit(stack, "step", 5, first=len(faults))
        stack.start("worker", "-c", "12", "--engine", stack.engine_url, env=site)
        stats = check_whole(stack, "step", 12)
        assert stats["failures"] == {"env": len(faults)}, stack.logs()

    @pytest.mark.parametrize("fault", ["sleep", "loop"])
    def test_a_step_that_hangs_costs_its_job_one_attempt(
        self, stack: Stack, site: dict[str, str], tmp_path: Path, fault: str
    ):
        stack.engine()
        once = str(tmp_path / "once")
        submit(stack, "step", 1, env="faulty", env_args={"fault": fault, "once": once}, budget=Budget(deadline_s=8.0))
        submit(stack, "step", 11, first=1)
        stack.start("worker", "-c", "12", "--engine", stack.engine_url, env=site)
        stats = check_whole(stack, "step", 12)
        assert stats["failures"] == {"env": 1}, stack.logs()

    def test_a_step_that_holds_the_interpreters_lock_for_ever(self, stack: Stack, site: dict[str, str], tmp_path: Path):
        stack.engine()
        once = str(tmp_path / "once")
        args = {"fault": "freeze", "once": once}
        submit(stack, "freeze", 1, first=11, env="faulty")
        worker = stack.start("worker", "-c", "12", "--engine", stack.engine_url, env=site | {"ROLLQ_ISOLATE": "faulty"})
        stack.wait(lambda: stack.stats("freeze")["done"] == 1, 150, "one that loads everything")
        submit(stack, "freeze", 1, env="faulty", env_args=args, budget=Budget(deadline_s=10.0))
        submit(stack, "freeze", 10, first=1)
        stats = check_whole(stack, "freeze", 12)
        assert stats["failures"] == {"env": 1}, stack.logs()
        stop(worker)

    def test_a_worker_with_most_slots_lost_starts_afresh(self, stack: Stack, site: dict[str, str]):
        stack.engine()
        submit(stack, "stuck", 3, env="faulty", env_args={"fault": "sleep"}, budget=Budget(deadline_s=4.0))
        worker = stack.start("worker", "-c", "4", "--engine", stack.engine_url, env=site)
        with Stalls() as stalls:
            assert worker.wait(150) == 75, stack.logs()
        assert stack.stats("stuck")["leased"] == 0 or stalls.seconds > CALM_S
        assert re.search(rb"[34] of 4 slots are lost", worker.log.read_bytes())  # type: ignore[attr-defined]

    def test_a_user_that_stalls(self, stack: Stack, hung: Hung):
        stack.engine()
        stalled = {"kind": "openai", "endpoint": "slow", "model": "m"}
        submit(stack, "user", 1, first=7)
        stack.start("worker", "-c", "8", "--engine", stack.engine_url, env={"ROLLQ_USER_ENDPOINTS": f"slow={hung.url}"})
        stack.wait(lambda: stack.stats("user")["done"] == 1, 150, "one that loads everything")
        submit(stack, "user", 1, user=stalled, budget=Budget(deadline_s=6.0))
        submit(stack, "user", 6, first=1)
        stack.wait(lambda: stack.stats("user")["failures"], 150, "the stalled user's failure")
        stack.wait(lambda: stack.stats("user")["done"] == 7, 150, "the others")
        assert set(stack.stats("user")["failures"]) == {"user"}

    def test_a_process_that_is_killed_for_its_memory(self, stack: Stack, site: dict[str, str], tmp_path: Path):
        stack.engine("--latency", "0.2")
        once = str(tmp_path / "once")
        submit(stack, "oom", 1, env="faulty", env_args={"fault": "killed", "once": once})
        submit(stack, "oom", 7, first=1)
        command = ("worker", "-c", "8", "--engine", stack.engine_url)
        assert stack.start(*command, env=site).wait(150) == 137
        leased = stack.stats("oom")["leased"]
        stack.start(*command, env=site)
        stats = check_whole(stack, "oom", 8)
        assert stats["failures"] == {"worker": leased}
        assert 0 < stats["resumed"] <= leased  # who had just claimed its job had written nothing


class TestRedis:
    @pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
    def test_it_restarts_in_the_middle(self, own: Stack, store: Store, how: int):
        own.engine("--latency", "0.5")
        submit(own, "restart", 24)
        own.worker(16)
        own.wait(lambda: own.stats("restart")["done"] >= 2, 150, "some jobs")
        store.stop(how)
        time.sleep(8)
        store.start()
        back = time.monotonic()
        done = own.stats("restart")["done"]
        own.wait(lambda: done == 24 or own.stats("restart")["done"] > done, 150, "the run to go on")
        print(f"goes on after {time.monotonic() - back:.1f} s")
        stats = check_whole(own, "restart", 24)
        assert not stats["failures"], own.logs()

    def test_its_memory_is_full_for_a_while(self, own: Stack, store: Store):
        own.engine("--latency", "0.3")
        submit(own, "full", 24)
        worker = own.worker(8)
        own.wait(lambda: own.stats("full")["done"] >= 2, 150, "some jobs")
        client = redis.Redis(port=store.port)
        client.config_set("maxmemory", 1)
        time.sleep(8)
        before = own.stats("full")["claims"]
        time.sleep(3)
        assert own.stats("full")["claims"] == before
        client.config_set("maxmemory", 0)
        client.close()
        stats = check_whole(own, "full", 24)
        assert not stats["failures"], own.logs()
        assert worker.poll() is None

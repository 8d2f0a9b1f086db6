"""A pause of any length is no hang, also on a server without /ready (SGLang 0.5.15). A real hang
still is one. A server that took itself for unhealthy meanwhile is told that it is not.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from rollq.events import Finish
from rollq_worker.engine import hang_watch
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.hang_watch import FAILURES, HangWatch
from rollq_worker.engine.sglang import server as control
from rollq_worker.protocols import Generated
from tests.contract.background_requests import BackgroundRequests
from tests.contract.conftest import Process, Server
from tests.contract.test_client import Client
from tests.recorder import recording
from tests.waiting import until

TOKENS = {False: 256, True: 2000}
"""Of a generation that lasts, by whether the server is real: there it takes some seconds."""


@pytest.fixture(params=[(), ("/ready",)], ids=["with /ready", "without"])
def patient_client(
    request: pytest.FixtureRequest,
    slow_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Client]:
    """A client that reaches the server through a proxy, and takes every wait for a long one."""
    monkeypatch.setattr(hang_watch, "SLOW_S", 0.0)
    client = Client(slow_server)
    client.engine.close()
    with recording(slow_server.url, tmp_path / "calls.jsonl", missing=request.param) as proxy:
        client.engine = EngineClient(proxy.url, vocab_size=slow_server.tokenizer.vocab_size)
        yield client
        client.engine.close()


def start_long(client: Client, running: BackgroundRequests) -> "Future[Generated]":
    client.server.close_gate()
    tokens = TOKENS[client.server.real]
    reply: Future[Generated] = running.pool.submit(
        client.generate, max_new_tokens=tokens, ignore_eos=True
    )
    running.wait_for(1)
    return reply


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_a_long_pause_is_no_hang(patient_client: Client, mode: str) -> None:
    watch = HangWatch(patient_client.engine)
    with BackgroundRequests(patient_client.server) as running:
        reply = start_long(patient_client, running)
        patient_client.server.post("/pause_generation", {"mode": mode})
        at_the_door: Future[Generated] = running.pool.submit(
            patient_client.generate, max_new_tokens=8
        )
        until(lambda: len(patient_client.engine._in_flight.rids()) == (1 if mode == "abort" else 2))
        for _ in range(2 * FAILURES):
            watch.check()
        assert patient_client.engine.available and patient_client.engine._shared.clock.seconds < 0.1
        assert not at_the_door.done()
        patient_client.server.open_gate()
        patient_client.server.post("/continue_generation", {})
        assert at_the_door.result(120).finish is not Finish.ABORT
        got = reply.result(120)
        assert (got.finish is Finish.ABORT) == (mode == "abort")
        assert mode == "abort" or len(got.ids) == TOKENS[patient_client.server.real]


def assert_given_up_until_it_goes_on(
    client: Client, stop: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """These processes are stopped in mid-generation. The reply comes once they go on."""
    watch = HangWatch(client.engine)
    with BackgroundRequests(client.server) as running:
        reply = start_long(client, running)
        monkeypatch.setattr(control, "QUESTION_TIMEOUT_S", 1.0)
        monkeypatch.setattr(control, "SCHEDULER_TIMEOUT_S", 1.0)
        for pid in stop:
            os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(FAILURES):
                assert client.engine.available
                watch.check()
            assert not client.engine.available and not reply.done()
        finally:
            for pid in stop:
                os.kill(pid, signal.SIGCONT)
        monkeypatch.undo()
        client.server.open_gate()
        assert len(reply.result(120).ids) == TOKENS[client.server.real]
        assert client.engine.available


def own_process(server: Server) -> Process:
    if server.process is None:
        pytest.skip("this server was running before the tests")
    return server.process


def processes(process: Process, name: str = "") -> list[int]:
    """The processes of a server, or those whose command line has this in it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                os.getpgid(int(folder.name)) == process.popen.pid
                and name in (folder / "cmdline").read_text()
            ):
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended
    return found


def test_a_server_that_is_stopped_hangs(
    patient_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_given_up_until_it_goes_on(
        patient_client, processes(own_process(patient_client.server)), monkeypatch
    )


def test_a_server_whose_scheduler_is_stuck_hangs(
    patient_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts requests, and answers whatever its scheduler is not asked for."""
    if not patient_client.server.real:
        pytest.skip("the replay engine is one process")
    schedulers = processes(own_process(patient_client.server), "sglang::scheduler")
    assert schedulers
    assert_given_up_until_it_goes_on(patient_client, schedulers, monkeypatch)


def test_a_server_that_failed_its_health_check_is_told_to_repeat_it(slow_server: Server) -> None:
    """Somebody's probe in a pause of 20 s makes SGLang unready for ever, although it generates."""
    slow_server.post("/pause_generation", {"mode": "retract"})
    assert slow_server.get("/health").status_code == 503
    slow_server.post("/continue_generation", {})
    assert slow_server.get("/ready").status_code == 503
    engine = EngineClient(slow_server.url)  # as a worker that starts now
    assert engine.ready() and slow_server.get("/ready").status_code == 200
    engine.close()

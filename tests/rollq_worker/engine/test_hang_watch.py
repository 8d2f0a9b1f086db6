"""An engine that accepts requests and never answers is given up; a slow or paused one is not."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rollq.events import Finish
from rollq_worker.engine import hang_watch
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.hang_watch import HangWatch
from rollq_worker.engine.sglang import server as control
from tests.rollq_worker.engine.clients import HeldReply, generate, is_waiting, port
from tests.rollq_worker.engine.engine_servers import scripted_engine
from tests.waiting import until


def test_an_engine_that_does_not_answer_is_an_outage(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "SLOW_S", 0.0)
    watch, held = HangWatch(client), HeldReply()
    with (
        scripted_engine(
            held, port=port(client), ready=(200, {}), server_info=(200, {}), health="hang"
        ) as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(generate, client)
        until(lambda: is_waiting(client, engine))
        watch.check()
        assert client.available  # slow, but its scheduler answers
        engine.paths["/server_info"] = "hang"
        monkeypatch.setattr(control, "SCHEDULER_TIMEOUT_S", 0.1)
        watch.check()
        assert client.available
        watch.check()
        assert not client.available
        asked = len(engine.bodies("/server_info"))
        until(lambda: len(engine.bodies("/server_info")) > asked + 2)
        assert len(engine.bodies()) == 1 and not waiting.done()
        assert not engine.bodies("/health"), "a check that fails makes SGLang call itself unhealthy"
        monkeypatch.setattr(control, "SCHEDULER_TIMEOUT_S", 60.0)
        engine.paths |= {"/server_info": (200, {}), "/health": (200, b"")}
        assert waiting.result(60).finish is Finish.STOP
        assert client.available and client._shared.clock.seconds > 0
        held.release.set()


def test_a_paused_engine_does_not_hang(client: EngineClient) -> None:
    """It loads weights, so that its scheduler answers nothing."""
    with scripted_engine(port=port(client), ready=(503, {}), server_info="hang"):
        assert not client.server.is_hung()


def test_another_workers_health_check_hides_no_hang(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SCHEDULER_TIMEOUT_S", 0.1)
    with scripted_engine(port=port(client), ready=(503, {}), ping=(503, {}), server_info="hang"):
        assert client.server.is_hung() and not client.server.is_paused() and not client.ready()


def test_an_engine_that_calls_itself_unhealthy_repeats_its_check(client: EngineClient) -> None:
    paths = {"ready": (503, {}), "ping": (200, {}), "server_info": (200, {})}
    with scripted_engine(port=port(client), health=(503, b""), **paths) as engine:
        assert not client.ready() and not engine.bodies("/health"), (
            "it is paused, and the check would fail"
        )
        engine.paths["/ping"] = (503, {})
        assert not client.ready() and engine.bodies("/health")
        engine.paths["/health"] = (200, b"")
        assert client.ready() and client.available


def test_a_router_that_answers_does_not_hang(client: EngineClient) -> None:
    with scripted_engine(port=port(client)):
        assert not client.server.is_hung()


def test_an_engine_that_is_away_hangs(client: EngineClient) -> None:
    assert client.server.is_hung()

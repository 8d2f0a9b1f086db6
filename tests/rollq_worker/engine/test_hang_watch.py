"""An engine that accepts requests and never answers is given up; a slow or paused one is not."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rollq.events import Finish
from rollq_worker.engine import hang_watch
from rollq_worker.engine.api import control
from rollq_worker.engine.hang_watch import HangWatch
from rollq_worker.engine.sglang_client import SGLangEngine
from tests.rollq_worker.engine.clients import HeldReply, generate, is_waiting, port
from tests.rollq_worker.engine.engine_servers import scripted_engine
from tests.waiting import until


def test_an_engine_that_does_not_answer_is_an_outage(client: SGLangEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "SLOW_S", 0.0)
    watch, held = HangWatch(client), HeldReply()
    with (
        scripted_engine(held, port=port(client), ready=(200, {}), health=(200, b"")) as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(generate, client)
        until(lambda: is_waiting(client, engine))
        watch.check()
        assert client.available  # slow, but it generates
        engine.paths["/health"] = "hang"
        monkeypatch.setattr(control, "HEALTH_TIMEOUT_S", 0.1)
        watch.check()
        assert client.available
        watch.check()
        assert not client.available
        until(lambda: len(engine.bodies("/health")) > 4)
        assert len(engine.bodies()) == 1 and not waiting.done()
        monkeypatch.setattr(control, "HEALTH_TIMEOUT_S", 60.0)
        engine.paths["/health"] = (200, b"")
        assert waiting.result(60).finish is Finish.STOP
        assert client.available and client.outage_s > 0
        held.release.set()


def test_a_paused_engine_does_not_hang(client: SGLangEngine) -> None:
    with scripted_engine(port=port(client), ready=(503, {}), health="hang"):
        assert not client.control.hangs()


def test_a_router_that_answers_does_not_hang(client: SGLangEngine) -> None:
    with scripted_engine(port=port(client)):
        assert not client.control.hangs()


def test_an_engine_that_is_away_hangs(client: SGLangEngine) -> None:
    assert client.control.hangs()

"""An engine that accepts requests and never answers is given up; a slow or paused one is not."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rollq.events import Finish
from rollq_worker.engine import hang_watch
from rollq_worker.engine.api import control
from rollq_worker.engine.hang_watch import UNREADY, HangWatch
from rollq_worker.engine.sglang_client import SGLangEngine
from tests.rollq_worker.engine.clients import HeldReply, generate, is_waiting, port
from tests.rollq_worker.engine.engine_servers import scripted_engine
from tests.waiting import until


def test_an_engine_that_does_not_answer_is_an_outage(client: SGLangEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "SLOW_S", 0.0)
    watch, held = HangWatch(client), HeldReply()
    with (
        scripted_engine(held, port=port(client), ready=(200, {}), server_info=(200, {}), health="hang") as engine,
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
        until(lambda: len(engine.bodies("/health")) > 4)
        assert len(engine.bodies()) == 1 and not waiting.done()
        assert client.outage_s > 0
        monkeypatch.setattr(control, "SCHEDULER_TIMEOUT_S", 60.0)
        engine.paths["/health"] = (200, b"")
        assert waiting.result(60).finish is Finish.STOP
        assert client.available and client.outage_s > 0
        held.release.set()


def test_a_paused_engine_does_not_hang(client: SGLangEngine) -> None:
    """It loads weights, so that its scheduler answers nothing."""
    with scripted_engine(port=port(client), ready=(503, {}), server_info="hang"):
        assert not client.control.hangs()


def test_an_engine_that_is_not_ready_for_long_is_told_to_check_itself(client: SGLangEngine) -> None:
    watch = HangWatch(client)
    with scripted_engine(port=port(client), ready=(503, {})) as engine:

        def checked(_: object) -> tuple[int, dict[str, str]]:
            engine.paths["/ready"] = (200, {})
            return 200, {}

        engine.paths["/health"] = checked
        assert not client.ready()
        for _ in range(UNREADY):
            watch.check()
        assert not engine.bodies("/health")  # a pause is over sooner
        watch.check()
        assert engine.bodies("/health") and not client.available
        watch.check()
        assert client.available


def test_a_router_that_answers_does_not_hang(client: SGLangEngine) -> None:
    with scripted_engine(port=port(client)):
        assert not client.control.hangs()


def test_an_engine_that_is_away_hangs(client: SGLangEngine) -> None:
    assert client.control.hangs()

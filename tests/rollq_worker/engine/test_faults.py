"""The SGLang client when an engine hangs, dies, or is killed by a request."""

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollq.errors import EngineFailure, JobFailure
from rollq.trajectory import Finish
from rollq_worker.engine import control, patience
from rollq_worker.engine.availability import Standstill
from rollq_worker.engine.hang_watch import EngineWatch
from rollq_worker.engine.quarantine import Poison, Quarantine
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.failures import Drained
from rollq_worker.protocols import Generated
from tests.conftest import free_port
from tests.rollq_worker.engine.engines import Scripted, fine, scripted

POISON = 666


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(patience, "RESET_BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr("rollq_worker.engine.quarantine.CHECK_S", 0.02)


@pytest.fixture
def engine() -> Iterator[SGLangEngine]:
    engine = SGLangEngine(f"http://127.0.0.1:{free_port()}")
    yield engine
    engine.close()


def port(engine: SGLangEngine) -> int:
    return int(engine.url.rsplit(":", 1)[1])


def generate(engine: SGLangEngine, key: str = "r/g/0", ids: Any = (1, 2, 3), check: Any = lambda: None) -> Generated:
    return engine.generate(array("I", ids), sampling={}, max_new_tokens=10, key=key, check=check)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def waits(engine: SGLangEngine, script: Scripted, count: int = 1) -> bool:
    """So many of its threads wait for an answer to a request that is there: those can be cut."""
    return len(script.bodies()) == len(engine._line.wires) == count


class Stuck:
    """An answer that comes when `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        self.release.wait(60)
        return fine(body)


class TestCutting:
    def test_a_wait_ends_and_the_attempt_is_asked_whether_it_must_stop(self, engine: SGLangEngine) -> None:
        stop, stuck = threading.Event(), Stuck()

        def check() -> None:
            if stop.is_set():
                raise Drained("stopping")

        with scripted(stuck, stuck, port=port(engine)) as script, ThreadPoolExecutor(2) as pool:
            mine = pool.submit(generate, engine, "r/g/0", check=check)
            other = pool.submit(generate, engine, "r/g/1", check=check)
            until(lambda: waits(engine, script, 2))
            assert engine.cut("r/g/7") == 0
            stop.set()
            assert engine.cut("r/g/0") == 1
            with pytest.raises(Drained):
                mine.result(60)
            assert not other.done()
            stop.clear()
            stuck.release.set()
            assert other.result(60).finish is Finish.STOP
            assert engine.cut() == 0

    def test_a_wait_that_was_cut_for_nothing_costs_nothing(self, engine: SGLangEngine) -> None:
        stuck = Stuck()
        with scripted(stuck, port=port(engine)) as script, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, engine)
            until(lambda: waits(engine, script))
            assert engine.cut() == 1
            assert waiting.result(60).finish is Finish.STOP
            assert len(script.bodies()) == 2
            stuck.release.set()


class TestHanging:
    def test_an_engine_that_does_not_answer_is_an_outage(
        self, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rollq_worker.engine.hang_watch.SLOW_S", 0.0)
        watch, stuck = EngineWatch(engine), Stuck()
        with (
            scripted(stuck, port=port(engine), ready=(200, {}), health=(200, b"")) as script,
            ThreadPoolExecutor(1) as pool,
        ):
            waiting = pool.submit(generate, engine)
            until(lambda: waits(engine, script))
            watch.look()
            assert engine.available  # slow, but it generates
            script.paths["/health"] = "hang"
            monkeypatch.setattr(control, "HEALTH_TIMEOUT_S", 0.1)
            watch.look()
            assert engine.available
            watch.look()
            assert not engine.available
            until(lambda: len(script.bodies("/health")) > 4)
            assert len(script.bodies()) == 1 and not waiting.done()
            monkeypatch.setattr(control, "HEALTH_TIMEOUT_S", 60.0)
            script.paths["/health"] = (200, b"")
            assert waiting.result(60).finish is Finish.STOP
            assert engine.available and engine.outage_s > 0
            stuck.release.set()

    def test_a_paused_engine_does_not_hang(self, engine: SGLangEngine) -> None:
        with scripted(port=port(engine), ready=(503, {}), health="hang"):
            assert engine.generates()

    def test_a_router_speaks_for_itself(self, engine: SGLangEngine) -> None:
        with scripted(port=port(engine)):
            assert engine.generates()

    def test_nobody_there(self, engine: SGLangEngine) -> None:
        assert not engine.generates()


class Fragile:
    """An engine that dies of POISON and is started again by a supervisor, on the same port."""

    def __init__(self, engine: SGLangEngine, *, mortal: bool = False) -> None:
        self.port = port(engine)
        self.mortal = mortal
        """It dies of every request."""
        self.deaths: list[int] = []
        """Requests in flight at each death."""
        self._dead = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._now = 0
        self._broken: set[int] = set()
        """Threads whose requests broke off at the last death."""
        self._noticed: set[int] = set()
        """Threads that asked since then and found nobody."""
        self._flights = engine._flights
        self._ready = engine.ready
        engine.ready = self._asked  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._supervise)

    def __enter__(self) -> "Fragile":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._dead.set()
        self._thread.join()

    def _supervise(self) -> None:
        while not self._over.is_set():
            self._dead.clear()
            self._broken.clear()
            with scripted(port=self.port, ready=(200, {})) as script:
                script.answers = _Forever(lambda body: self._answer(script, body))  # type: ignore[assignment]
                self._dead.wait()
                script.closed = True
            # Away until everybody has seen it: whoever comes late would take it for a connection that broke.
            until(lambda: self._over.is_set() or (not self._now and self._broken <= self._noticed))

    def _asked(self) -> bool:
        there = self._ready()
        if not there:
            self._noticed.add(threading.get_ident())
        return there

    def _answer(self, script: Scripted, body: dict[str, Any]) -> Any:
        with self._lock:
            self._now += 1
        try:
            if self.mortal or POISON in body["input_ids"]:
                time.sleep(0.05)
                with self._lock:
                    if not self._dead.is_set():
                        self.deaths.append(self._now)
                    script.closed = True  # here: whoever asks again, however soon, gets no answer
                    self._dead.set()
            self._dead.wait(0.15)
            with self._lock:
                if not self._dead.is_set():
                    return fine(body)
                thread = self._flights._now[body["rid"]].thread
                self._noticed.discard(thread)
                self._broken.add(thread)
            raise ConnectionAbortedError  # the handler's connection ends without an answer
        finally:
            with self._lock:
                self._now -= 1


class _Forever:
    """The same answer, as often as it is asked for."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def pop(self, index: int) -> Any:
        return self.answer

    def __bool__(self) -> bool:
        return True


class TestRestarting:
    def test_an_engine_that_comes_back_with_other_weights_and_limits(self, engine: SGLangEngine) -> None:
        at = port(engine)

        def dies(body: dict[str, Any]) -> dict[str, Any]:
            script.closed = True  # here: whoever asks again, however soon, gets no answer
            raise ConnectionAbortedError  # the connection ends without an answer

        def other(body: dict[str, Any]) -> dict[str, Any]:
            return fine(body, weight_version="v2", weight_versions=[{"version": "v2", "start": 0, "end": 3}])

        info = {"context_length": 1000, "max_req_input_len": 994}
        with ThreadPoolExecutor(1) as pool:
            with scripted(dies, port=at, ready=(200, {}), server_info=(200, info)) as script:
                assert engine.room(10) == 990
                waiting = pool.submit(generate, engine)
                until(lambda: script.closed)
            until(lambda: not engine.available)
            info = {"context_length": 500, "max_req_input_len": 494}
            with scripted(other, port=at, ready=(200, {}), server_info=(200, info)):
                got = waiting.result(60)
                assert [span.version for span in got.versions] == ["v2"]
                assert engine.room(10) == 490


class TestPoison:
    def test_whoever_kills_engines_is_found_and_nobody_else_is_blamed(self, engine: SGLangEngine) -> None:
        with Fragile(engine) as fragile, ThreadPoolExecutor(11) as pool:
            innocent = [pool.submit(generate, engine, f"r/g/{i}") for i in range(10)]
            guilty = pool.submit(generate, engine, "r/poison/0", [1, POISON])
            with pytest.raises(Poison, match="r/poison/0: this job kills engines"):
                guilty.result(60)
            assert all(one.result(60).finish is Finish.STOP for one in innocent)
            assert fragile.deaths[-2:] == [1, 1]
            assert generate(engine).finish is Finish.STOP
            assert len(fragile.deaths) <= 6  # twice beside others, if each death was seen as one

    def test_one_death_sends_nobody_alone(self, engine: SGLangEngine) -> None:
        dead, together = threading.Event(), threading.Barrier(5, timeout=60)

        def dies(body: dict[str, Any]) -> dict[str, Any]:
            dead.wait(60)
            raise ConnectionAbortedError  # the connection ends without an answer

        def at_once(body: dict[str, Any]) -> dict[str, Any]:
            together.wait()
            return fine(body)

        with ThreadPoolExecutor(5) as pool:
            with scripted(*[dies] * 5, port=port(engine), ready=(200, {})) as script:
                waiting = [pool.submit(generate, engine, f"r/g/{i}") for i in range(5)]
                until(lambda: len(script.bodies()) == 5)
            dead.set()
            until(lambda: not engine.available)
            with scripted(*[at_once] * 5, port=port(engine), ready=(200, {})):
                assert all(one.result(60).finish is Finish.STOP for one in waiting)

    def test_an_engine_that_dies_of_everything_is_nobodys_fault(self, engine: SGLangEngine) -> None:
        stop = threading.Event()

        def check() -> None:
            if stop.is_set():
                raise Drained("stopping")

        with Fragile(engine, mortal=True) as fragile, ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(generate, engine, f"r/g/{i}", check=check) for i in range(3)]
            until(lambda: len(fragile.deaths) > 10)
            assert not any(one.done() for one in waiting)
            stop.set()
            for one in waiting:
                with pytest.raises(Drained):
                    one.result(60)

    def test_a_connection_that_breaks_while_the_engine_lives_blames_no_job(self, engine: SGLangEngine) -> None:
        with scripted(*["reset"] * 50, port=port(engine), ready=(200, {})), pytest.raises(EngineFailure):
            generate(engine)

    def test_the_deadline_stands_still_while_suspects_go_alone(self) -> None:
        standstill = Standstill()
        quarantine = Quarantine(standstill)
        with quarantine.suspect() as suspect:
            with pytest.raises(Drained), quarantine.passing(None, _stop):
                pytest.fail("it did not wait")
            with quarantine.passing(suspect, _stop):
                time.sleep(0.01)
            assert standstill.seconds > 0
        was = standstill.seconds
        time.sleep(0.01)
        assert standstill.seconds == was
        with quarantine.passing(None, _stop), quarantine.passing(None, _stop):
            pass

    def test_poison_is_a_failure_of_the_job(self) -> None:
        assert issubclass(Poison, JobFailure)


def test_what_overlaps_stands_still_once() -> None:
    standstill = Standstill()
    standstill.begin()
    standstill.begin()
    time.sleep(0.02)
    standstill.end()
    running = standstill.seconds
    assert 0.02 <= running <= standstill.seconds
    standstill.end()
    assert standstill.seconds == standstill.seconds >= running


def _stop() -> None:
    raise Drained("stopping")

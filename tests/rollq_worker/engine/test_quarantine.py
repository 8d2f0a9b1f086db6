"""Requests under which engines die."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from rollq.events import Finish
from rollq_worker.engine import sglang_client
from rollq_worker.engine.availability import OutageClock
from rollq_worker.engine.quarantine import PoisonJob, Quarantine, Suspect
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.failures import Drained
from tests.rollq_worker.engine.clients import generate, port, raise_drained
from tests.rollq_worker.engine.engine_servers import good_reply, scripted_engine
from tests.waiting import until

POISON = 666


class MortalEngine:
    """An engine that dies of requests with the id POISON and is started again by a supervisor, on
    the same port.
    """

    def __init__(
        self, client: SGLangEngine, *, dies_of_every_request: bool = False, lives_s: float = 0.05
    ) -> None:
        """`lives_s` is how many seconds it lives on with a request that kills it."""
        self.port = port(client)
        self.dies_of_every_request = dies_of_every_request
        self.lives_s = lives_s
        self.deaths: list[int] = []
        """Requests in flight at each death."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._requests = 0
        self._broken: set[int] = set()
        """Threads whose requests broke off at the last death."""
        self._noticed: set[int] = set()
        """Threads that asked since then and found the engine away."""
        self._in_flight = client._in_flight
        self._ready = client.ready
        client.ready = self._watched_ready  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._supervise)

    def __enter__(self) -> "MortalEngine":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _supervise(self) -> None:
        while not self._over.is_set():
            self._broken.clear()
            self._live_once()
            # Away until every thread has seen it: one that comes late would take it for a
            # connection that broke.
            until(
                lambda: (
                    self._over.is_set() or (not self._requests and self._broken <= self._noticed)
                )
            )

    def _live_once(self) -> None:
        dead = threading.Event()  # one for each life: a late request sees that its own is over
        ready = partial(self._ready_answer, dead)
        with scripted_engine(then=partial(self._answer, dead), port=self.port, ready=ready):
            until(lambda: dead.is_set() or self._over.is_set())

    def _watched_ready(self) -> bool:
        ready = self._ready()
        if not ready:
            self._noticed.add(threading.get_ident())
        return ready

    def _ready_answer(self, dead: threading.Event, _: dict[str, Any]) -> Any:
        return "reset" if dead.is_set() else (200, {})

    def _answer(self, dead: threading.Event, body: dict[str, Any]) -> Any:
        with self._lock:
            self._requests += 1
        try:
            if self.dies_of_every_request or POISON in body["input_ids"]:
                time.sleep(self.lives_s)
                with self._lock:
                    if not dead.is_set():
                        self.deaths.append(self._requests)
                    dead.set()
            dead.wait(0.15)
            with self._lock:
                if not dead.is_set():
                    return good_reply(body)
                [thread] = [
                    thread
                    for thread, request in self._in_flight._by_thread.items()
                    if request.rid == body["rid"]
                ]
                self._noticed.discard(thread)
                self._broken.add(thread)
            raise ConnectionAbortedError  # the connection ends without an answer
        finally:
            with self._lock:
                self._requests -= 1


def test_a_job_that_kills_engines_is_found_and_no_other_is_blamed(
    client: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pauses outlast the moment in which a dying server still takes connections.
    monkeypatch.setattr(sglang_client, "CONNECTION_LOST_BACKOFF_S", (0.3, 1.0))
    with MortalEngine(client) as engine, ThreadPoolExecutor(11) as pool:
        innocent = [pool.submit(generate, client, f"r/g/{i}") for i in range(10)]
        guilty = pool.submit(generate, client, "r/poison/0", [1, POISON])
        with pytest.raises(PoisonJob, match="r/poison/0: this job kills engines"):
            guilty.result(60)
        assert all(one.result(60).finish is Finish.STOP for one in innocent)
        assert engine.deaths[-2:] == [1, 1]
        assert generate(client).finish is Finish.STOP
        assert len(engine.deaths) <= 6  # twice beside others, if each death was seen as one


def test_after_one_death_no_request_is_sent_alone(client: SGLangEngine) -> None:
    dead, together = threading.Event(), threading.Barrier(5, timeout=60)

    def dies(body: dict[str, Any]) -> dict[str, Any]:
        dead.wait(60)
        raise ConnectionAbortedError  # the connection ends without an answer

    def at_once(body: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        return good_reply(body)

    with ThreadPoolExecutor(5) as pool:
        with scripted_engine(*[dies] * 5, port=port(client), ready=(200, {})) as engine:
            waiting = [pool.submit(generate, client, f"r/g/{i}") for i in range(5)]
            until(lambda: len(engine.bodies()) == 5)
        dead.set()
        until(lambda: not client.available)
        with scripted_engine(*[at_once] * 5, port=port(client), ready=(200, {})):
            assert all(one.result(60).finish is Finish.STOP for one in waiting)


@pytest.mark.parametrize(
    ("requests", "lives_s"),
    [(3, 0.05), (3, 0.0), (2, 0.0)],
    ids=["with all in flight", "with the first in flight", "of two"],
)
def test_an_engine_that_dies_of_every_request_blames_no_job(
    client: SGLangEngine, requests: int, lives_s: float
) -> None:
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise Drained("stopping")

    mortal = MortalEngine(client, dies_of_every_request=True, lives_s=lives_s)
    with mortal as engine, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(generate, client, f"r/g/{i}", check=check) for i in range(requests)]
        try:
            until(lambda: len(engine.deaths) > 10 or any(one.done() for one in waiting))
            assert not [one.exception() or one.result() for one in waiting if one.done()]
        finally:
            stop.set()
        for one in waiting:
            with pytest.raises(Drained):
                one.result(60)


def test_deadlines_stand_still_while_suspects_are_sent_alone() -> None:
    clock = OutageClock()
    quarantine = Quarantine(clock)
    with quarantine.suspect("a") as suspect:
        with pytest.raises(Drained):  # it had to wait
            quarantine.enter("a", None, raise_drained)
        quarantine.enter("a", suspect, raise_drained)
        time.sleep(0.01)
        quarantine.leave("a")
        assert clock.seconds > 0
    before = clock.seconds
    time.sleep(0.01)
    assert clock.seconds == before
    quarantine.enter("a", None, raise_drained)
    quarantine.enter("a", None, raise_drained)


def dies(quarantine: Quarantine, suspect: Suspect, engine: str = "a") -> None:
    """The engine dies of the suspect, which need not wait for its turn."""
    quarantine.enter(engine, suspect, raise_drained)
    quarantine.leave(engine)
    quarantine.engine_died(suspect, "r/g/0")


def waits(quarantine: Quarantine, suspect: Suspect | None, engine: str = "a") -> bool:
    """Whether it has to wait for its turn."""
    try:
        quarantine.enter(engine, suspect, raise_drained)
    except Drained:
        return True
    quarantine.leave(engine)
    return False


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine(OutageClock())


def test_another_engine_is_entered_while_one_that_waits_looks_around(
    quarantine: Quarantine,
) -> None:
    def look() -> None:
        quarantine.enter("b", None, raise_drained)
        quarantine.leave("b")
        raise Drained

    with quarantine.suspect("a") as suspect:
        quarantine.enter("a", suspect, raise_drained)
        with pytest.raises(Drained):
            quarantine.enter("a", None, look)


def test_others_are_tried_between_two_deaths_of_a_suspect(quarantine: Quarantine) -> None:
    with quarantine.unserved(), quarantine.unserved(), quarantine.suspect("a") as suspect:
        assert waits(quarantine, None)
        dies(quarantine, suspect)
        assert waits(quarantine, suspect)
        assert not waits(quarantine, None)
        quarantine.answered("a")
        assert waits(
            quarantine, None
        )  # the engine works for others, and now it is the suspect's turn
        with pytest.raises(PoisonJob, match="r/g/0"):
            dies(quarantine, suspect)


def test_a_suspect_without_others_does_not_wait_and_is_blamed(quarantine: Quarantine) -> None:
    with quarantine.unserved(), quarantine.suspect("a"):
        assert waits(quarantine, None)  # these two have gone when the next one comes
    with quarantine.unserved(), quarantine.suspect("a") as suspect:
        dies(quarantine, suspect)
        with pytest.raises(PoisonJob):
            dies(quarantine, suspect)


def test_others_that_do_not_come_are_waited_for_a_while_and_prove_nothing(
    quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quarantine.unserved(), quarantine.unserved(), quarantine.suspect("a") as suspect:
        dies(quarantine, suspect)
        assert waits(quarantine, suspect)
        monkeypatch.setattr("rollq_worker.engine.quarantine.OTHERS_S", 0.0)
        for _ in range(3):
            dies(quarantine, suspect)
        quarantine.enter("a", suspect, raise_drained)
        with pytest.raises(Drained):  # although the suspect lacks proof, it is alone
            quarantine.enter("a", None, raise_drained)


def test_a_suspect_lets_those_pass_that_waited_for_it(quarantine: Quarantine) -> None:
    with quarantine.unserved(), quarantine.suspect("a") as suspect:
        dies(quarantine, suspect)
        quarantine._waiting["a"] += 1  # it has not woken up yet
        assert waits(quarantine, suspect)


def test_others_wait_while_one_of_two_suspects_was_not_tried(quarantine: Quarantine) -> None:
    with quarantine.suspect("a") as one, quarantine.suspect("a") as two:
        assert waits(quarantine, two)  # the other one is on its way, and first
        dies(quarantine, one)
        assert waits(quarantine, None) and waits(quarantine, one)
        dies(quarantine, two)
        assert not waits(quarantine, None)


def test_a_suspect_does_not_wait_for_ever_for_one_that_waits_elsewhere(
    quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quarantine.suspect("a") as one, quarantine.suspect("b") as two:
        dies(quarantine, two, "b")
        quarantine.answered("b")
        assert waits(quarantine, two, "b")  # `one` was never alone
        monkeypatch.setattr("rollq_worker.engine.quarantine.OTHERS_S", 0.0)
        assert not waits(quarantine, two, "b")
        one.engine, one.waits = "b", True
        assert waits(quarantine, two, "b")  # now it is there


def test_the_wait_counts_from_the_last_request_in_flight(quarantine: Quarantine) -> None:
    with quarantine.suspect("a"), quarantine.suspect("a") as suspect:
        assert quarantine._free("a", suspect, since=0.0)
        quarantine._in_flight["a"] += 1
        quarantine.leave("a")
        assert not quarantine._free("a", suspect, since=0.0)


def test_answers_of_another_engine_prove_nothing_of_this_one(quarantine: Quarantine) -> None:
    with quarantine.unserved(), quarantine.suspect("a") as suspect:
        for _ in range(3):
            dies(quarantine, suspect)
            quarantine.answered("c")
        with pytest.raises(PoisonJob):  # two engines died of it alone
            dies(quarantine, suspect, "b")


def test_a_request_elsewhere_is_another(quarantine: Quarantine) -> None:
    quarantine.enter("b", None, raise_drained)
    with quarantine.unserved(), quarantine.suspect("a") as suspect:
        dies(quarantine, suspect)
        dies(quarantine, suspect)
        quarantine.leave("b")
        with pytest.raises(PoisonJob):
            dies(quarantine, suspect)


def test_a_request_that_an_engine_fails_is_unserved_until_its_answer(client: SGLangEngine) -> None:
    quarantine = client._shared.quarantine
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(generate, client)  # no engine is there
        until(lambda: quarantine._unserved == 1)
        with scripted_engine((500, {}), "reset", port=port(client), ready=(200, {})):
            assert waiting.result(60).finish is Finish.STOP
        assert quarantine._unserved == 0 and quarantine._answered[client.url] == 1


def test_a_suspect_is_alone_on_its_own_engine_only(quarantine: Quarantine) -> None:
    with quarantine.suspect("a") as suspect:
        quarantine.enter("b", None, raise_drained)
        quarantine.enter("a", suspect, raise_drained)
        quarantine.leave("a")
        with pytest.raises(Drained):  # it had to wait for the request there
            quarantine.enter("b", suspect, raise_drained)
        quarantine.enter("a", None, raise_drained)  # the suspect has moved

"""Several engines as one: which one a request goes to, and what happens when engines
come and go.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from urllib3.exceptions import LocationParseError

from rollq.errors import EngineFailure
from rollq.events import Finish
from rollq_worker.engine import hang_watch
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.sglang import server as control
from rollq_worker.failures import Drained
from tests.rollq_worker.engine.clients import HeldReply, generate, one_text, raise_drained
from tests.rollq_worker.engine.engine_servers import Answer, ScriptedEngine, good_reply, reply
from tests.rollq_worker.engine.pool_fleet import GROUPS, Fleet
from tests.waiting import until


class TestRouting:
    def test_the_siblings_of_a_group_share_an_engine(self, fleet: Fleet) -> None:
        for sample in range(5):
            generate(fleet.pool, f"run/group/{sample}")
        assert sorted(len(engine.bodies()) for engine in fleet.running.values()) == [0, 0, 5]

    def test_only_the_groups_of_an_engine_that_is_away_move_and_they_come_back(
        self, fleet: Fleet
    ) -> None:
        before = fleet.homes()
        gone = fleet.ports[0]
        fleet.stop(gone)
        away = fleet.homes()
        assert all(away[group] == before[group] for group in GROUPS if before[group] != gone)
        assert gone not in away.values()
        fleet.start(gone)
        assert all(engine.ready() for engine in fleet.pool.engines)  # as their watches ask
        assert fleet.homes() == before

    def test_a_sampled_id_above_the_tokenizers_is_sent_to_every_engine(self, fleet: Fleet) -> None:
        padding = 1500
        home = fleet.home("run/group")
        home.answers = [lambda body: reply([7, padding, 9], prompt_tokens=3, id=body["rid"])]
        generate(fleet.pool)
        fleet.stop(home.port)
        assert generate(fleet.pool, ids=[1, padding]).finish is Finish.STOP

    def test_the_smallest_context_counts(self, fleet: Fleet) -> None:
        for context, engine in zip((4096, 1024, 2048), fleet.running.values(), strict=True):
            engine.paths["/server_info"] = (200, {"context_length": context})
        assert fleet.pool.room(24) == 1000


LEFT: list[Answer] = [
    (503, {"message": "The request queue is full."}),
    (404, {"detail": "Not Found"}),
    (500, b"CUDA error"),
    (200, b"nonsense"),
]


class TestLeaving:
    @pytest.mark.parametrize("answer", LEFT)
    def test_an_engine_that_takes_no_requests_or_fails_them_is_left(
        self, fleet: Fleet, answer: Answer
    ) -> None:
        home, before = fleet.home("run/group"), fleet.pool.outage_s
        home.then = answer
        assert generate(fleet.pool).finish is Finish.STOP
        assert fleet.pool.outage_s == before

    def test_a_request_that_fails_everywhere_fails(self, fleet: Fleet) -> None:
        for engine in fleet.running.values():
            engine.then = (500, b"CUDA error")
        with pytest.raises(EngineFailure, match="4 times in a row"):
            generate(fleet.pool)
        assert sum(len(engine.bodies()) for engine in fleet.running.values()) == 4

    def test_requests_in_flight_go_on_elsewhere_when_their_engine_dies(self, fleet: Fleet) -> None:
        home = fleet.home("run/group")
        sent, dead = len(home.bodies()), threading.Event()

        def dies(body: dict[str, Any]) -> Any:
            dead.wait(60)
            raise ConnectionAbortedError  # the connection ends without an answer

        home.then = dies
        with ThreadPoolExecutor(8) as pool:
            waiting = [
                pool.submit(generate, fleet.pool, f"run/group/{sample}") for sample in range(8)
            ]
            until(lambda: len(home.bodies()) == sent + 8)
            home.closed = True
            dead.set()
            assert all(one.result(60).finish is Finish.STOP for one in waiting)
        assert len(home.bodies()) >= sent + 8 and fleet.pool.available

    def test_requests_in_flight_leave_an_engine_that_hangs_and_it_comes_back(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = fleet.home("run/group")
        home.then, home.paths["/health"] = "hang", "hang"
        client = fleet.client_of(home)
        sent = len(home.bodies())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, fleet.pool)
            until(lambda: len(home.bodies()) > sent)
            client.give_up()
            # at once, not after /health has failed to answer
            assert waiting.result(20).finish is Finish.STOP
        with monkeypatch.context() as patch:  # an answer may take its time afterwards
            patch.setattr(control, "SCHEDULER_TIMEOUT_S", 0.1)
            assert not client.ready()
        assert fleet.home("run/group") is not home
        home.then, home.paths["/health"] = good_reply, (200, b"")
        assert client.ready() and fleet.home("run/group") is home

    def test_a_lost_connection_to_an_engine_that_lives_is_no_death(self, fleet: Fleet) -> None:
        home = fleet.home("run/group")
        home.answers = ["reset"] * 3
        assert generate(fleet.pool).finish is Finish.STOP
        assert not home.answers  # it went there again each time, because it lives

    def test_an_engine_with_another_tokenizer_is_left(self, fleet: Fleet) -> None:
        home = fleet.home("run/group")
        for engine in fleet.running.values():
            engine.paths["/tokenize"] = (200, {"tokens": [9] if engine is home else [1, 2]})
        pool = EnginePool([engine.url for engine in fleet.running.values()], proof=one_text(1, 2))
        sent = len(home.bodies())
        assert generate(pool).finish is Finish.STOP
        assert len(home.bodies()) == sent
        pool.close()

    def test_deadlines_stand_still_only_while_no_engine_is_there(
        self, make_fleet: Callable[[int], Fleet], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hang_watch, "AWAY_S", 0.02)
        fleet = make_fleet(2)
        fleet.pool.watch()
        (first, last), start = fleet.ports, fleet.pool.outage_s
        fleet.stop(first)
        assert not all(engine.ready() for engine in fleet.pool.engines)
        assert fleet.pool.available and fleet.pool.outage_s == start
        fleet.stop(last)
        with pytest.raises(Drained):
            generate(fleet.pool, check=Countdown(50))
        before = fleet.pool.outage_s
        assert not fleet.pool.available and before > start
        fleet.start(first)
        assert generate(fleet.pool).finish is Finish.STOP
        since = fleet.pool.outage_s
        fleet.home("run/group")
        assert fleet.pool.outage_s == since > before


class Countdown:
    """A check that raises when it is called for the n-th time."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise_drained()


class TestAborts:
    def test_the_rest_of_an_aborted_turn_goes_where_its_start_was_sampled(
        self, fleet: Fleet
    ) -> None:
        home = fleet.home("run/group")
        client = fleet.client_of(home)
        home.paths["/ready"] = (503, {})
        assert not client.ready()
        other = fleet.home("run/group")
        aborted = {"finish_reason": {"type": "abort", "message": "Aborted"}}
        other.answers = [partial(good_reply, **aborted)]
        assert generate(fleet.pool).finish is Finish.ABORT
        home.paths["/ready"] = (200, {})
        assert client.ready()
        sent = len(other.bodies())
        assert generate(fleet.pool).finish is Finish.STOP
        assert len(other.bodies()) == sent + 1
        assert fleet.home("run/group") is home  # the next turn

    def test_waits_are_ended_on_every_engine(self, fleet: Fleet) -> None:
        held = HeldReply()
        groups = [fleet.group_of(port) for port in fleet.ports]
        for engine in fleet.running.values():
            engine.then = held
        stopping = threading.Event()
        with ThreadPoolExecutor(3) as pool:
            check = lambda: raise_drained() if stopping.is_set() else None  # noqa: E731
            waiting = [
                pool.submit(generate, fleet.pool, f"{group}/0", check=check) for group in groups
            ]
            until(lambda: all(engine.longest_wait_s() for engine in fleet.pool.engines))
            assert fleet.pool.abort_running() == 0  # these engines know no aborts
            stopping.set()
            until(lambda: fleet.pool.cut() or all(one.done() for one in waiting))
            until(lambda: (fleet.pool.cut(), all(one.done() for one in waiting))[1])
            for one in waiting:
                with pytest.raises(Drained):
                    one.result(60)
            held.release.set()


class TestChangingLists:
    def test_a_new_engine_gets_its_groups(self, make_fleet: Callable[[int], Fleet]) -> None:
        fleet = make_fleet(2)
        old, new = fleet.ports
        fleet.pool.update([fleet.url(old)])
        assert set(fleet.homes().values()) == {old}
        fleet.pool.update([fleet.url(old), fleet.url(new)])
        assert set(fleet.homes().values()) == {old, new}

    def test_a_removed_engine_finishes_what_it_has(self, fleet: Fleet) -> None:
        home, held = fleet.home("run/group"), HeldReply()
        home.then = held
        sent = len(home.bodies())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, fleet.pool)
            until(lambda: len(home.bodies()) == sent + 1)
            fleet.pool.update(fleet.urls_beside(home))
            assert fleet.home("run/group") is not home
            held.release.set()
            assert waiting.result(60).finish is Finish.STOP
        assert len(home.bodies()) == sent + 1

    def test_a_removed_engine_that_hangs_is_given_up(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, seconds in (("INTERVAL_S", 0.02), ("AWAY_S", 0.02), ("SLOW_S", 0.0)):
            monkeypatch.setattr(hang_watch, name, seconds)
        home = fleet.home("run/group")
        home.then = "hang"
        removed = fleet.client_of(home)
        fleet.pool.watch()
        sent = len(home.bodies())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, fleet.pool)
            until(lambda: len(home.bodies()) > sent)
            fleet.pool.update(fleet.urls_beside(home))
            monkeypatch.setattr(control, "SCHEDULER_TIMEOUT_S", 0.1)
            home.paths["/server_info"] = "hang"
            assert waiting.result(60).finish is Finish.STOP
        until(lambda: not removed.longest_wait_s())

    def test_a_request_that_waits_for_a_removed_engine_leaves_it(
        self, make_fleet: Callable[[int], Fleet]
    ) -> None:
        fleet = make_fleet(2)
        gone, new = fleet.ports
        fleet.stop(gone)
        fleet.pool.update([fleet.url(gone)])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, fleet.pool)
            until(lambda: not fleet.pool.available)
            fleet.pool.update([fleet.url(new)])
            assert waiting.result(60).finish is Finish.STOP
        before = fleet.pool.outage_s
        fleet.home("run/group")
        assert fleet.pool.outage_s == before > 0

    def test_when_one_engine_cannot_be_opened_nothing_changes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hang_watch, "AWAY_S", 0.02)
        pool = EnginePool(["http://old"])
        pool.watch()
        engines, threads = pool.engines, {*threading.enumerate()}
        with pytest.raises(LocationParseError):
            pool.update(["http://new", "http:// bad"])
        assert pool.engines == engines
        until(lambda: threads >= {*threading.enumerate()})
        pool.close()

    def test_without_engines_requests_wait(self, make_fleet: Callable[[int], Fleet]) -> None:
        fleet = make_fleet(1)
        fleet.pool.update([])
        assert not fleet.pool.available and fleet.pool.room(5) > 1_000_000
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, fleet.pool)
            with pytest.raises(Drained):
                generate(fleet.pool, check=Countdown(3))
            assert fleet.pool.outage_s > 0 and not waiting.done()
            given_back = fleet.pool.awaits_weights("run")
            fleet.pool.update([fleet.url(fleet.ports[0])])
            assert waiting.result(60).finish is Finish.STOP
        assert not given_back  # its messages, for ten seconds


LETHAL = 666


def test_a_request_under_which_engines_die_is_given_up(
    make_fleet: Callable[[int], Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "AWAY_S", 0.02)
    fleet = make_fleet(6)
    deaths: list[int] = []

    def answer(engine: ScriptedEngine, body: dict[str, Any]) -> Any:
        if LETHAL in body["input_ids"]:
            deaths.append(engine.port)
            engine.closed = True
            engine.over.set()
        if engine.closed:
            raise ConnectionAbortedError  # the connection ends without an answer
        return good_reply(body)

    for engine in fleet.running.values():
        engine.then = partial(answer, engine)
    with pytest.raises(EngineFailure, match="run/group/4: engines died 4 times"):
        generate(fleet.pool, "run/group/4", [1, LETHAL])
    assert len({*deaths}) == len(deaths) == 4
    assert generate(fleet.pool).finish is Finish.STOP

"""A worker that meets jobs for others takes few messages, so that the others get them."""

import threading

import pytest

from rollq_worker.process import misfits
from rollq_worker.process.misfits import FIRST_REST_S, LEAVE_S, LONGEST_REST_S, TOLD_S, Misfits
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(misfits, "time", clock := Clock())
    return clock


def test_rests_grow_until_a_job_is_played(clock: Clock) -> None:
    rests: list[float] = []

    def pause(seconds: float) -> None:
        rests.append(round(seconds, 1))
        clock.ahead += seconds + 0.01

    met = Misfits(pause)
    for _ in range(6):
        met.rest()
    assert rests == [0.5, 1.0, 2.0, 4.0, LONGEST_REST_S, LONGEST_REST_S]
    met.played()
    met.rest()
    assert rests[-1] == FIRST_REST_S


def test_no_message_is_taken_before_the_last_slot_has_rested() -> None:
    over, both, gate = threading.Event(), threading.Barrier(3), list[bool]()

    def pause(seconds: float) -> None:
        assert seconds <= FIRST_REST_S  # the second one joins the rest of the first
        both.wait(60)
        over.wait(60)

    met = Misfits(pause)
    met.on_rest = gate.append
    slots = [threading.Thread(target=met.rest) for _ in range(2)]
    for slot in slots:
        slot.start()
    both.wait(60)
    assert gate == [True, True]
    over.set()
    for slot in slots:
        slot.join(60)
    assert gate == [True, True, False]


def test_a_run_is_left_for_a_minute_and_told_a_little_longer(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    met = Misfits(lambda seconds: None)
    met.meet("a", "no such file here", leave=True)
    met.meet("b", "another tokenizer")
    met.meet("b", "another tokenizer")
    assert met.leaves("a") and not met.leaves("b")
    assert met.met() == {"a": "no such file here", "b": "another tokenizer"}
    assert caplog.text.count("does not play run") == 2
    clock.ahead += LEAVE_S
    assert not met.leaves("a")
    clock.ahead += TOLD_S - LEAVE_S
    assert met.met() == {}

"""Outages, and the time that they take."""

import time

from rollq_worker.engine.availability import Availability, OutageClock
from tests.waiting import until


def test_overlapping_outages_count_once() -> None:
    clock = OutageClock()
    clock.start()
    clock.start()
    time.sleep(0.02)
    clock.stop()
    running = clock.seconds
    assert 0.02 <= running <= clock.seconds
    clock.stop()
    assert clock.seconds == clock.seconds >= running


def test_it_is_known_whether_the_engine_may_be_another_one() -> None:
    clock = OutageClock()
    availability = Availability("engine", clock)
    assert availability.up and not availability.mark_up() and clock.seconds == 0
    availability.mark_down("full")
    availability.mark_down("full")
    assert not availability.up
    assert not availability.mark_up()
    availability.mark_down("refused", unreachable=True)
    availability.mark_down("full")
    assert availability.mark_up()
    assert availability.up and 0 < clock.seconds == clock.seconds


def test_an_engine_that_is_ready_and_refuses_is_worth_a_request_but_its_outage_goes_on() -> None:
    clock = OutageClock()
    availability = Availability("engine", clock)
    availability.mark_down("starting", unreachable=True)
    assert availability.mark_ready() and availability.up and clock.seconds == clock.seconds
    availability.mark_down("full", refused=True)
    assert not availability.mark_ready() and availability.up
    before = clock.seconds
    until(lambda: clock.seconds > before)
    availability.mark_down("full", refused=True)
    assert not availability.up
    availability.mark_up()  # a request was answered
    assert availability.up and clock.seconds == clock.seconds

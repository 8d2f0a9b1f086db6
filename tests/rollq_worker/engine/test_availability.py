"""Outages, and the time that they take."""

import time

from rollq_worker.engine.availability import Availability, OutageClock


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

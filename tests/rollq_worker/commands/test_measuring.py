"""Measured rollouts are added up as one run."""

import pytest

from rollq_worker.commands.simulate.site import Played, Used, together
from rollq_worker.simulation.fleet.traces import Episode


def test_runs_together_are_one_run():
    one, two = (Episode(10, ((2, 3), (4, 0))), Episode(20, ((5, 1),)))
    runs = [Played([one], 1.0, 2.0, 3.0, 4.0, 5.0, 100.0, 0.0), Played([two], 3.0, 4.0, 5.0, 6.0, 7.0, 200.0, 2.0)]
    found = together(runs)
    assert (found.rollouts, found.turns, found.own_tokens) == (2, 3, 15)
    assert (found.wall_s, found.workers_s, found.redis_s, found.bytes) == (4.0, 6.0, 10.0, 300.0)
    assert found.others == pytest.approx(1.5)  # weighted by time


def test_other_programs_are_counted_between_two_looks():
    before, after = (Used(at, 0.0, 0.0, 0.0, 0.0, 0, others_s) for at, others_s in ((10.0, -5.0), (14.0, 1.0)))
    assert after.others(before) == pytest.approx(1.5)

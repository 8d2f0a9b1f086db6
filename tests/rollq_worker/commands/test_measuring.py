"""Measured rollouts: real ones on few cores, and how runs add up."""

import os
import sys

import pytest

from rollq_worker.commands.simulate.site import CORES, Played, Site, Used, few_cores, together
from rollq_worker.simulation.fleet.traces import Episode


def test_runs_together_are_one_run():
    one, two = (Episode(10, ((2, 3), (4, 0))), Episode(20, ((5, 1),)))
    runs = [Played([one], 1.0, 2.0, 3.0, 4.0, 5.0, 100.0, 0.0), Played([two], 3.0, 4.0, 5.0, 6.0, 7.0, 200.0, 2.0)]
    found = together(runs)
    assert (found.rollouts, found.turns, found.own_tokens) == (2, 3, 15)
    assert (found.wall_s, found.workers_s, found.redis_s, found.bytes) == (4.0, 6.0, 10.0, 300.0)
    assert found.others == pytest.approx(1.5)  # weighted by time


def test_other_programs_are_counted_between_two_looks():
    before, after = (Used(at, 0.0, 0.0, 0.0, 0.0, 0.0, 0, others_s) for at, others_s in ((10.0, -5.0), (14.0, 1.0)))
    assert after.others(before) == pytest.approx(1.5)


@pytest.mark.skipif(sys.platform != "linux", reason="costs are measured by /proc")
def test_sites_that_share_an_engine_count_their_own_rollouts():
    mine = os.sched_getaffinity(0)
    with few_cores(), Site("shop", 0.0, None) as busy:
        assert os.sched_getaffinity(0) <= mine and len(os.sched_getaffinity(0)) <= CORES
        busy.add_workers(1, 4)
        with Site("shop", 0.0, None, busy) as crowded:
            crowded.add_workers(2, 4)
            for site in (busy, crowded):
                site.await_workers()
            assert crowded.engine is busy.engine
            played, steady = busy.play(2), crowded.play_steadily(8, 1, 1)
            assert (played.rollouts, steady.rollouts >= 8) == (8, True)
            assert busy.play(2, max_turns=2).turns == 2 * 8 < played.turns
            assert played.workers_s > 0 < steady.worker_s and played.bytes > 0
            assert steady.scripts > 0 and steady.client_s > 0 and steady.engine_turn_s > 0
            assert 0.0 <= busy.messages(20) < 1.0
    assert os.sched_getaffinity(0) == mine

"""The simulated clock, its servers and its cores: order, conservation of work, and queueing theory."""

import math
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.simulation.fleet.clock import QUANTUM_S, SLEPT_S, Clock, Cores, Process, Server


@given(st.lists(st.floats(0, 100), max_size=40))
def test_events_happen_in_order_and_never_in_the_past(times: list[float]):
    clock, seen = Clock(), []

    def act(time: float) -> None:
        assert clock.now == time
        seen.append(time)
        if len(seen) < 60:
            clock.at(time - 1, lambda _: seen.append(clock.now))  # what should have happened happens now

    for time in times:
        clock.at(time, act, time)
    clock.run()
    assert seen == sorted(seen)
    assert clock.passed == len(seen)


def test_events_of_one_time_keep_their_order():
    clock, seen = Clock(), []
    for number in range(10):
        clock.at(1.0, seen.append, number)
    clock.run()
    assert seen == list(range(10))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_server_waits_as_an_m_d_1_queue_does(load: float):
    clock, random, service = Clock(), Random(1), 0.001
    server, calls = Server(clock), 200_000
    waits: list[float] = []

    def arrive(_: None) -> None:
        server.serve(service, 0.0, lambda began: waits.append(clock.now - began - service), clock.now)
        if len(waits) < calls:
            clock.at(clock.now + random.expovariate(load / service), arrive)

    clock.at(0.0, arrive)
    clock.run()
    theory = service * load / (2 * (1 - load))
    assert fmean(waits) == pytest.approx(theory, rel=0.1)
    assert server.busy_s / clock.now == pytest.approx(load, rel=0.02)


WORK = st.lists(st.tuples(st.integers(0, 4), st.floats(0, 10), st.floats(0.001, 5)), min_size=1, max_size=40)


@given(WORK, st.integers(1, 6))
def test_cores_do_all_work_once_and_no_more_at_a_time_than_there_are(work: list[tuple[int, float, float]], count: int):
    clock = Clock()
    cores = Cores(clock, count)
    processes = [cores.process() for _ in range(5)]
    ended: list[tuple[int, int, float]] = []

    def begin(item: tuple[int, int, float]) -> None:
        _, process, seconds = item
        processes[process].run(seconds, ended.append, item)

    for number, (process, at, seconds) in enumerate(work):
        clock.at(at, begin, (number, process, seconds))
    clock.run()
    assert sorted(number for number, _, _ in ended) == list(range(len(work)))
    total = sum(seconds for _, _, seconds in work)
    assert sum(process.busy_s for process in processes) == pytest.approx(total)
    first, last = min(at for _, at, _ in work), max(at for _, at, _ in work)
    longest = max(sum(s for p, _, s in work if p == process) for process in range(5))
    # Neither faster than cores and the busiest process allow, nor slower than one core would be.
    assert clock.now >= first + max(total / count, longest) - (last - first) - 1e-9
    assert clock.now <= last + total + 1e-9
    for process in range(5):  # one thread of a process runs at a time, in the order in which they came
        order = [number for number, of, _ in ended if of == process]
        assert order == sorted(order, key=lambda number: (work[number][1], number))


def test_one_process_uses_one_core():
    clock = Clock()
    process = Cores(clock, 8).process()
    for _ in range(10):
        process.run(1.0, lambda _: None)
    clock.run()
    assert clock.now == pytest.approx(10.0)


def test_processes_share_cores_fairly():
    clock, ends = Clock(), {}
    cores = Cores(clock, 2)
    for name in range(4):
        process = cores.process()
        for _ in range(100):
            process.run(0.01, lambda name: ends.update({name: clock.now}), name)
    clock.run()
    assert clock.now == pytest.approx(2.0)
    assert all(math.isclose(end, 2.0, abs_tol=0.05) for end in ends.values())


def test_a_pause_costs_once():
    clock = Clock()
    server = Server(clock, wake_s=0.5)
    for at in (1.0, 1.1, 2.5005, 10.0):  # the second waits for the first, the third comes right after it
        clock.at(at, lambda _: server.load(0.5))
    clock.run()
    assert server.busy_s == pytest.approx(4 * 0.5 + 2 * 0.5)


def test_a_short_pause_for_another_process_costs_nothing():
    clock = Clock()
    cores = Cores(clock, 1)
    first, second = cores.process(switch_s=0.25), cores.process()
    first.run(QUANTUM_S, lambda _: None)
    first.run(QUANTUM_S, lambda _: None)
    second.run(SLEPT_S / 2, lambda _: None)
    clock.run()
    assert (cores.handovers, first.switches) == (2, 0)


def test_work_after_a_pause_for_another_process_costs_more():
    clock = Clock()
    cores = Cores(clock, 1)
    processes = [cores.process(switch_s=0.25) for _ in range(2)]
    for process in processes:
        for _ in range(3):
            process.run(1.0, lambda _: None)
    clock.run()
    assert sum(process.switches for process in processes) == 5  # each slice is longer than a process keeps the core
    assert clock.now == pytest.approx(6 + 5 * 0.25)


def test_a_process_keeps_its_core_for_short_slices():
    clock = Clock()
    cores = Cores(clock, 1)
    for process in [cores.process() for _ in range(2)]:
        for _ in range(4):
            process.run(QUANTUM_S * 0.6, lambda _: None)
    clock.run()
    assert cores.handovers == 3  # two slices at a time


def test_a_core_stands_still_between_two_processes():
    clock, ends = Clock(), list[float]()
    cores = Cores(clock, 1, handover_s=0.5)
    processes = [cores.process() for _ in range(2)]
    for process in processes:
        process.run(1.0, lambda _: ends.append(clock.now))
    clock.run()
    assert ends == [1.0, 2.5]
    assert [process.busy_s for process in processes] == [1.0, 1.0]


@pytest.mark.parametrize("foreign", [0.5, 1.5])
def test_other_programs_take_their_share_of_the_cores(foreign: float):
    clock, ended = Clock(), list[float]()
    cores = Cores(clock, 2)
    cores.disturb(foreign)

    def again(process: Process) -> None:
        ended.append(clock.now)
        process.run(0.001, again, process)

    for _ in range(4):  # they always want a core
        process = cores.process()
        process.run(0.001, again, process)
    clock.at(20.0, lambda _: clock.stop())
    clock.run()
    assert len(ended) * 0.001 / 20.0 == pytest.approx(2 - foreign, rel=0.25)


def test_waking_up_costs_once():
    clock = Clock()
    process = Cores(clock, 1).process(wake_s=0.5)
    for at in (0.0, 0.1, 10.0):
        clock.at(at, lambda _: process.run(1.0, lambda _: None))
    clock.run()
    assert process.busy_s == pytest.approx(3 + 2 * 0.5)


def test_who_waits_for_a_core_does_not_wake_up():
    clock = Clock()
    cores = Cores(clock, 1)
    other, process = cores.process(), cores.process(wake_s=0.5, switch_s=0.125)
    other.run(2.0, lambda _: None)
    clock.at(1.0, lambda _: process.run(1.0, lambda _: None))
    clock.run()
    assert (process.wakes, process.switches) == (0, 1)
    assert process.busy_s == pytest.approx(1.125)

"""What a worker process is set to."""

import pytest

from rollq_worker.process.main import switch_interval


@pytest.mark.parametrize(
    ("slots", "seconds"), [(1, 0.005), (64, 0.005), (250, 0.0125), (1000, 0.05)]
)
def test_threads_that_wait_for_the_interpreter_wake_as_often_in_a_crowd(
    slots: int, seconds: float
) -> None:
    assert switch_interval(slots) == pytest.approx(seconds)
    assert switch_interval(100_000) == 0.05

"""Pauses that can be ended."""

import pytest

from rollq_worker.failures import Drained
from rollq_worker.remote import waiting
from rollq_worker.remote.waiting import backoff, wait


def test_a_pause_ends_when_check_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "CHECK_S", 0.001)
    checks = iter(range(3))

    def check() -> None:
        if next(checks, None) is None:
            raise Drained("stopping")

    with pytest.raises(Drained):
        wait(600.0, check)


def test_a_pause_of_no_length_still_checks() -> None:
    checks: list[int] = []
    wait(0.0, lambda: checks.append(1))
    assert checks == [1]


@pytest.mark.parametrize(
    ("tries", "longest"), [(0, 0.1), (1, 0.2), (3, 0.8), (5, 2.0), (10_000, 2.0)]
)
def test_pauses_double_up_to_the_longest(tries: int, longest: float) -> None:
    pauses = [backoff(tries, 0.1, 2.0) for _ in range(100)]
    assert longest / 2 <= min(pauses) < max(pauses) <= longest

"""Time limits on foreign code: a call and a block give the same errors, and the list of calls is always put right."""

from collections.abc import Callable

import pytest

from rollq.errors import ContractError, EnvironmentFailure, UserFailure
from rollq_worker.failures import DeadlineExceeded, Drained, errors_become
from rollq_worker.process.attempts import time_limits
from rollq_worker.process.attempts.time_limits import ThreadAbandoned, TimeLimits
from tests.clock import Clock

ERRORS = [
    ValueError("no such order"),
    KeyError(),
    DeadlineExceeded("past the deadline of 1 s"),
    Drained("the worker is stopping"),
    ContractError("not JSON"),
    UserFailure("the user is away"),
    SystemExit(2),
    KeyboardInterrupt(),
    ThreadAbandoned("over"),
]


def in_a_block(limits: TimeLimits, foreign: Callable[[], None]) -> None:
    with limits.call(EnvironmentFailure, "environment.step(look)", 60.0):
        foreign()


def in_a_call(limits: TimeLimits, foreign: Callable[[], None]) -> None:
    limits.run(EnvironmentFailure, "environment.step(look)", 60.0, foreign)


def became(play: Callable[..., None], error: BaseException) -> tuple[type[BaseException], str, BaseException | None]:
    def foreign() -> None:
        assert limits.current is not None and limits.current.what == "environment.step(look)"
        raise error

    limits = TimeLimits()
    with pytest.raises(BaseException) as raised:
        play(limits, foreign)
    assert limits.current is None
    return raised.type, str(raised.value), raised.value.__cause__


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_becomes_the_same_in_a_call_as_in_a_block(error: BaseException) -> None:
    assert became(in_a_call, error) == became(in_a_block, error)


def test_an_untyped_error_becomes_the_failure_that_names_the_code() -> None:
    error = ValueError("no such order")
    expected = (EnvironmentFailure, "environment.step(look): ValueError: no such order", error)
    assert became(in_a_call, error) == expected
    with pytest.raises(EnvironmentFailure) as raised, errors_become(EnvironmentFailure, "environment.step(look)"):
        raise error
    assert (raised.type, str(raised.value), raised.value.__cause__) == expected


@pytest.mark.parametrize("error", [SystemExit(2), ThreadAbandoned("over")], ids=lambda error: type(error).__name__)
def test_what_is_no_exception_passes_where_only_errors_become_failures(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, errors_become(EnvironmentFailure, "environment.step(look)"):
        raise error
    assert raised.value is error


def test_a_missed_deadline_is_blamed_on_the_innermost_call() -> None:
    kind, text, _ = became(in_a_call, DeadlineExceeded("past the deadline of 1 s"))
    assert (kind, text) == (
        EnvironmentFailure,
        "past the deadline of 1 s while waiting for environment.step(look)",
    )


def test_a_call_gives_its_result_and_the_time_of_calls_within_it_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("rollq_worker.process.attempts.time_limits.time.monotonic", lambda: now)
    limits = TimeLimits()

    def user(message: str) -> str:
        nonlocal now
        now += 500.0
        assert limits.current is not None and limits.current.what == "the user" and limits.current.overdue
        return message.upper()

    def step() -> str:
        said = limits.run(UserFailure, "the user", 60.0, user, "hello")
        assert limits.current is not None and limits.current.since == 600.0 and not limits.current.overdue
        return said

    assert limits.run(EnvironmentFailure, "environment.step(look)", 60.0, step) == "HELLO"
    assert limits.current is None


def test_a_call_that_waits_for_what_is_away_is_not_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "time", clock := Clock())
    limits = TimeLimits()
    with limits.call(EnvironmentFailure, "environment.step(look)", 60.0), limits.call(UserFailure, "the user", 5.0):
        call = limits.current
        assert call is not None
        clock.ahead += 4
        with limits.away("the user's endpoint"):
            clock.ahead += 1000
            assert not call.overdue and limits.away_s == pytest.approx(1000, abs=0.5)
        assert not call.overdue and limits.away_s == pytest.approx(1000, abs=0.5)
        clock.ahead += 2
        assert call.overdue

"""Time limits on foreign code: what its errors become, and whose clock runs."""

import re
from typing import Any, cast

import pytest

from rollq.env import Action
from rollq.errors import (
    ContractError,
    EnvironmentFailure,
    JobFailure,
    UserFailure,
    WorkerFailure,
)
from rollq_worker.failures import DeadlineExceeded, Drained, errors_become
from rollq_worker.process.attempts import time_limits
from rollq_worker.process.attempts.time_limits import (
    TimedEnvironment,
    TimeLimits,
    timed_context,
)
from rollq_worker.protocols import Context
from tests.clock import Clock


def became(error: BaseException) -> tuple[type[BaseException], str, BaseException | None]:
    limits = TimeLimits()
    with (
        pytest.raises(BaseException) as raised,
        limits.call(EnvironmentFailure, "environment.step(look)", 60.0),
    ):
        assert limits.current is not None and limits.current.what == "environment.step(look)"
        raise error
    assert limits.current is None
    return raised.type, str(raised.value), raised.value.__cause__


@pytest.mark.parametrize(
    "error",
    [
        Drained("the worker is stopping"),
        ContractError("not JSON"),
        UserFailure("away"),
    ],
    ids=repr,
)
def test_an_error_that_has_a_type_passes(error: BaseException) -> None:
    assert became(error) == (type(error), str(error), None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (KeyError(), "KeyError: "),
        (SystemExit(2), "SystemExit: 2"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
    ids=repr,
)
def test_any_other_becomes_the_failure_that_names_the_code(error: BaseException, text: str) -> None:
    expected = (EnvironmentFailure, f"environment.step(look): {text}", error)
    assert became(error) == expected
    if isinstance(error, Exception):
        with (
            pytest.raises(EnvironmentFailure) as raised,
            errors_become(EnvironmentFailure, "environment.step(look)"),
        ):
            raise error
        assert (raised.type, str(raised.value), raised.value.__cause__) == expected


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")], ids=repr)
def test_a_shortage_of_the_worker_is_not_the_jobs_fault(error: Exception) -> None:
    with pytest.raises(WorkerFailure, match="rendering"), errors_become(JobFailure, "rendering"):
        raise error
    with pytest.raises(EnvironmentFailure), errors_become(EnvironmentFailure, "a step"):
        raise error


def test_a_missed_deadline_is_blamed_on_the_innermost_call() -> None:
    kind, text, _ = became(DeadlineExceeded("past the deadline of 1 s"))
    assert (kind, text) == (
        EnvironmentFailure,
        "past the deadline of 1 s while waiting for environment.step(look)",
    )


def test_the_time_of_calls_within_a_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "time", clock := Clock())
    limits = TimeLimits()
    with limits.call(EnvironmentFailure, "environment.step(look)", 60.0):
        with limits.call(UserFailure, "the user", 60.0):
            clock.ahead += 500.0
            assert (
                limits.current is not None
                and limits.current.what == "the user"
                and limits.current.overdue
            )
        assert limits.current is not None and not limits.current.overdue
        clock.ahead += 61.0
        assert limits.current.overdue


def test_a_call_that_waits_for_what_is_away_is_not_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "time", clock := Clock())
    limits = TimeLimits()
    with (
        limits.call(EnvironmentFailure, "environment.step(look)", 60.0),
        limits.call(UserFailure, "the user", 5.0),
    ):
        call = limits.current
        assert call is not None
        clock.ahead += 4
        with limits.away("the user's endpoint"):
            clock.ahead += 1000
            assert not call.overdue and limits.away_s == pytest.approx(1000, abs=0.5)
        assert not call.overdue and limits.away_s == pytest.approx(1000, abs=0.5)
        clock.ahead += 2
        assert call.overdue


def test_a_system_prompt_has_a_limit() -> None:
    class Slow:
        @property
        def system_prompt(self) -> str:
            assert limits.current is not None
            raise ValueError(f"at most {limits.current.limit_s:g} s")

    limits = TimeLimits()
    timed = TimedEnvironment(cast(Any, Slow()), limits, 60.0, ())
    with pytest.raises(
        EnvironmentFailure, match=re.escape("environment.system_prompt: ValueError: at most 60 s")
    ):
        _ = timed.system_prompt


def test_a_limit_that_is_no_number_is_the_environments_failure() -> None:
    class Odd:
        longest_step_s = None
        longest_grade_s = "long"

    timed = TimedEnvironment(cast(Any, Odd()), TimeLimits(), 60.0, ())
    with pytest.raises(EnvironmentFailure, match=r"environment.longest_step_s: TypeError: .*None"):
        timed.step(Action("look", {}))
    with pytest.raises(
        EnvironmentFailure, match=r"environment.longest_grade_s: ValueError: .*long"
    ):
        timed.grade()


def test_a_context_has_a_limit_and_a_failure_of_its_own() -> None:
    limits = TimeLimits()

    def shorten(*given: Any) -> Any:
        assert limits.current is not None
        raise ValueError(f"at most {limits.current.limit_s:g} s for {given}")

    timed = timed_context(Context(shorten=shorten, failure=UserFailure, longest_s=7.0), limits)
    with pytest.raises(
        UserFailure, match=re.escape("the context: ValueError: at most 7 s for ([], [], 3)")
    ):
        timed.shorten([], [], 3)

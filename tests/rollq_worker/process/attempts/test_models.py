"""Models that jobs name: who plays such a job, and whose clock runs while they are away."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollq.errors import ForOtherWorkers
from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.leases import Leases
from rollq_worker.process.attempts.models import asking, asking_teacher, check_models
from tests.rollq_worker.process.ledgers import claim

TAUGHT = Job(env="shop", task=0, teachers={"math": {"model": "large"}, "own": {"adapter": "a@1"}})


@pytest.fixture
def attempt(ledger: Ledger) -> Iterator[Attempt]:
    with Leases(threading.Event()).hold(ledger, claim(ledger)) as held:
        yield held


def test_a_job_of_an_unknown_model_is_for_other_workers() -> None:
    check_models(TAUGHT, {"large"})
    check_models(Job(env="shop", task=0), ())
    with pytest.raises(ForOtherWorkers, match=r"'math' is the model 'large', .*MODEL_ENGINES"):
        check_models(TAUGHT, {"small"})


@pytest.mark.parametrize("is_other", [True, False])
def test_the_clock_stands_still_while_a_teacher_is_away(
    attempt: Attempt, is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[float] = []
    limits = attempt.time_limits
    monkeypatch.setattr(attempt, "check", lambda: checks.append(limits.away_s))
    pool = SimpleNamespace(outage_s=5.0, available=True)
    models = {"large": pool} if is_other else {}
    with asking_teacher(attempt, cast(Any, models), "math", cast(Any, pool)) as check:
        call = limits.current
        assert call is not None and call.what == "the teacher 'math'"
        since = call.since
        for pool.outage_s in (5.0, 7.0, 7.5):
            check()
        assert call.since - since == 2.5
        asked = [question.engines for question in attempt.questions]
        assert asked == ["the engine of 'large'"] * is_other
        for pool.available in (True, False):
            assert all(q.are_away() is not pool.available for q in attempt.questions)
    assert not attempt.questions
    # for the policy's own engines the attempt counts
    assert checks == ([0.0, 2.0, 2.5] if is_other else [0.0, 0.0, 0.0])


def test_questions_at_once_count_an_outage_once(attempt: Attempt) -> None:
    pool = SimpleNamespace(outage_s=0.0, available=False)
    with ExitStack() as stack:
        checks = [stack.enter_context(asking(attempt, "m", cast(Any, pool)))]
        pool.outage_s = 3.0
        checks += [stack.enter_context(asking(attempt, "m", cast(Any, pool))) for _ in range(2)]
        pool.outage_s = 10.0
        for check in checks:
            check()
    assert attempt.time_limits.away_s == 10.0
    pool.outage_s = 50.0  # nobody asks meanwhile
    with asking(attempt, "m", cast(Any, pool)) as check:
        pool.outage_s = 51.0
        check()
    assert attempt.time_limits.away_s == 11.0

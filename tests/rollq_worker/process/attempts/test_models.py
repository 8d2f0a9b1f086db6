"""Models that jobs name: who plays such a job, and whose clock runs while they are away."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollq.errors import ForOtherWorkers
from rollq.job import Job
from rollq_worker.process.attempts.models import asking_teacher, check_models
from rollq_worker.process.attempts.time_limits import TimeLimits

TAUGHT = Job(env="shop", task=0, teachers={"math": {"model": "large"}, "own": {"adapter": "a@1"}})


def test_a_job_of_an_unknown_model_is_for_other_workers() -> None:
    check_models(TAUGHT, {"large"})
    check_models(Job(env="shop", task=0), ())
    with pytest.raises(ForOtherWorkers, match=r"'math' is the model 'large', .*MODEL_ENGINES"):
        check_models(TAUGHT, {"small"})


@pytest.mark.parametrize("is_other", [True, False])
def test_the_clock_stands_still_while_a_teacher_is_away(is_other: bool) -> None:
    checks: list[float] = []
    limits = TimeLimits()
    attempt = SimpleNamespace(
        time_limits=limits, check=lambda: checks.append(limits.away_s), questions=[]
    )
    pool = SimpleNamespace(outage_s=5.0, available=True)
    models = {"large": pool} if is_other else {}
    with asking_teacher(cast(Any, attempt), cast(Any, models), "math", cast(Any, pool)) as check:
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

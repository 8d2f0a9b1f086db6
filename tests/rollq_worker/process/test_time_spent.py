"""Where episodes spend their time: what a look counts for whom, and what the ledger is told."""

from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from rollq.errors import (
    AgentFailure,
    EnvironmentFailure,
    RewardFailure,
    RolloutFailure,
    TeacherFailure,
    UserFailure,
)
from rollq.events import Finish, VersionSpan
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.time_spent import WAITS, report_time, seconds_spent
from rollq_worker.engine.pool import Replies, Traffic
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.time_spent import TimeSpent
from rollq_worker.protocols import Generated
from tests.rollq_worker.process.ledgers import submit

GENERATED = Generated(
    ids=array("I", [5, 6]),
    logprobs=array("f", [-1.0, -1.0]),
    versions=[VersionSpan("w", 0, 2)],
    finish=Finish.STOP,
    cached_tokens=2,
)


def spent(ledger: Ledger) -> dict[str, float]:
    return seconds_spent(ledger.redis.hvals(ledger.keys.spent))


def attempts(ledger: Ledger, *waits: str | type[RolloutFailure]) -> list[Any]:
    """What each attempt waits for, or the failure of the call that it is in."""
    return [
        SimpleNamespace(
            job=SimpleNamespace(id=f"r/g/{n}", run="r"),
            ledger=ledger,
            waits_for=(wait, 1.0),
            time_limits=SimpleNamespace(
                current=None if isinstance(wait, str) else SimpleNamespace(failure=wait)
            ),
        )
        for n, wait in enumerate(waits)
    ]


def test_a_look_counts_each_episode_where_it_is(ledger: Ledger) -> None:
    waits = (
        EnvironmentFailure,
        RewardFailure,
        UserFailure,
        AgentFailure,
        TeacherFailure,
        "redis",
        "start",
        "engine",
        "engine",
        "engine",
        "engine",
    )
    traffic = Traffic()
    spent = TimeSpent("w", lambda: attempts(ledger, *waits), traffic)
    traffic.begin("r/g/6")
    traffic.begin("r/g/7")
    spent.count(2.0, 0.0)
    # Three run Python code and do not wait for the engine, so one runs and two wait for the
    # interpreter.
    assert spent.seconds["r"] == pytest.approx(
        {
            "environment": 4.0,
            "user": 2.0,
            "agent": 2.0,
            "teacher": 2.0,
            "ledger": 2.0,
            "engine": 4.0,
            "tokens": 2.0,
            "interpreter": 4.0,
        }
    )
    assert sum(spent.seconds["r"].values()) == pytest.approx(2.0 * len(waits))


def test_a_late_look_counts_what_woke_meanwhile(ledger: Ledger) -> None:
    traffic = Traffic()
    spent = TimeSpent("w", lambda: attempts(ledger, "engine", "engine"), traffic)
    traffic.begin("r/g/0")
    traffic.begin("r/g/1")
    spent.count(1.0, 0.0)
    traffic.end("r/g/0", 3, GENERATED)
    assert traffic.replies() == Replies(
        Counter({"stop": 1}), prompt_tokens=3, cached_tokens=2, sampled_tokens=2
    )
    assert (traffic.answered, set(traffic.asking)) == (1, {"r/g/1"})
    assert spent.seconds["r"] == {**dict.fromkeys(WAITS, 0.0), "engine": 2.0}
    traffic.begin("r/g/0")
    spent.count(1.0, 0.1)  # one wait has ended since, and its thread came as late as this look
    assert spent.seconds["r"] == pytest.approx(
        {**dict.fromkeys(WAITS, 0.0), "engine": 3.9, "interpreter": 0.1}
    )


def test_a_job_waits_until_the_last_of_its_requests_is_answered() -> None:
    traffic = Traffic()
    traffic.begin("r/g/0")
    traffic.begin("r/g/0")
    traffic.end("r/g/0", 1, None)
    assert set(traffic.asking) == {"r/g/0"}
    traffic.end("r/g/0", 1, None)
    assert not traffic.asking and traffic.answered == 2 and not traffic.replies().by_finish


def test_the_ledger_has_the_sum_of_all_workers(ledger: Ledger) -> None:
    report_time(ledger.scripts, "a", {"engine": 2.5})  # of a run that is not there
    assert spent(ledger) == dict.fromkeys(WAITS, 0.0)
    submit(ledger)
    for _ in range(2):  # a report that is repeated changes nothing
        report_time(ledger.scripts, "a", {"engine": 2.5, "user": 1.0})
        report_time(ledger.scripts, "b", {"engine": 1.0})
    ledger.redis.hset(ledger.keys.spent, "other", "hello")
    assert spent(ledger) == {**dict.fromkeys(WAITS, 0.0), "engine": 3.5, "user": 1.0}


def test_a_job_that_was_played_is_counted(runner: JobRunner, ledger: Ledger) -> None:
    [engine] = runner.engine.engines
    sample = engine.sample

    def watched(call: Any) -> Any:
        runner.time_spent.count(1.0, 0.0)
        return sample(call)

    engine.sample = watched  # type: ignore[method-assign]
    played = runner.run(submit(ledger))
    runner.time_spent.report()
    assert spent(ledger)["engine"] == played["turns"]
    assert not runner.engine.traffic.asking

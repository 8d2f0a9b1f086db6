"""Where episodes spend their time: what a look counts for whom, and what the ledger is told."""

from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from rollq.events import Finish, VersionSpan
from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.time_spent import WAITS, report_time, seconds_spent
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.time_spent import Replies, TimeSpent
from rollq_worker.protocols import Generated


class Asked:
    """An engine, during whose call something happens."""

    def __init__(self) -> None:
        self.meanwhile: Any = lambda: None

    def generate(self, ids: Any, **options: Any) -> Generated:
        self.meanwhile()
        logprobs = array("f", [-1.0, -1.0])
        versions = [VersionSpan("w", 0, 2)]
        finish = Finish.STOP
        return Generated(ids=array("I", [5, 6]), logprobs=logprobs, versions=versions, finish=finish, cached_tokens=2)

    def room(self, prompt: int) -> int:
        return 7 - prompt


def spent(ledger: Ledger) -> dict[str, float]:
    return seconds_spent(ledger.redis.hvals(ledger.keys.spent))


def attempts(ledger: Ledger, *waits: str) -> list[Any]:
    jobs = [SimpleNamespace(id=f"r/g/{n}", run="r") for n in range(len(waits))]
    return [
        SimpleNamespace(job=job, ledger=ledger, waits_for=(wait, 1.0)) for job, wait in zip(jobs, waits, strict=True)
    ]


def test_a_look_counts_each_episode_where_it_is(ledger: Ledger) -> None:
    waits = (
        "environment.step(get_order)",
        "the user",
        "the agent",
        "redis",
        "start",
        "engine",
        "engine",
        "engine",
        "engine",
    )
    engine = Asked()
    spent = TimeSpent("w", lambda: attempts(ledger, *waits), engine)  # type: ignore[arg-type]
    spent.engine.asking = Counter({"r/g/5": 1, "r/g/6": 1})
    spent.look(2.0, 0.0)
    # Three run Python code and do not wait for the engine, so one runs and two wait for the interpreter.
    assert spent.seconds["r"] == pytest.approx(
        {"environment": 2.0, "user": 2.0, "agent": 2.0, "ledger": 2.0, "engine": 4.0, "tokens": 2.0, "interpreter": 4.0}
    )
    assert sum(spent.seconds["r"].values()) == pytest.approx(2.0 * len(waits))


def test_a_late_look_counts_what_woke_meanwhile(ledger: Ledger) -> None:
    engine = Asked()
    spent = TimeSpent("w", lambda: attempts(ledger, "engine", "engine"), engine)  # type: ignore[arg-type]
    engine.meanwhile = lambda: spent.look(1.0, 0.0)
    spent.engine.asking["r/g/1"] += 1
    assert spent.engine.generate(array("I", [1, 2, 3]), key="r/g/0").ids.tolist() == [5, 6]
    assert spent.engine.replies() == Replies(Counter({"stop": 1}), prompt_tokens=3, cached_tokens=2, sampled_tokens=2)
    assert (spent.engine.room(3), spent.engine.answered, set(spent.engine.asking)) == (4, 1, {"r/g/1"})
    assert spent.seconds["r"] == {**dict.fromkeys(WAITS, 0.0), "engine": 2.0}
    spent.engine.asking["r/g/0"] += 1
    spent.look(1.0, 0.1)  # one wait has ended since, and its thread came as late as this look
    assert spent.seconds["r"] == pytest.approx({**dict.fromkeys(WAITS, 0.0), "engine": 3.9, "interpreter": 0.1})


def test_a_job_waits_until_the_last_of_its_requests_is_answered(ledger: Ledger) -> None:
    engine = Asked()
    spent = TimeSpent("w", lambda: attempts(ledger, "engine"), engine)  # type: ignore[arg-type]
    spent.engine.asking["r/g/0"] += 1
    spent.engine.generate(array("I", [1]), key="r/g/0")
    assert set(spent.engine.asking) == {"r/g/0"}


def test_the_ledger_has_the_sum_of_all_workers(ledger: Ledger) -> None:
    report_time(ledger.scripts, "a", {"engine": 2.5})  # of a run that is not there
    assert spent(ledger) == dict.fromkeys(WAITS, 0.0)
    ledger.submit([Job(run="r", group="g", env="shop", task=0)])
    for _ in range(2):  # a report that is repeated changes nothing
        report_time(ledger.scripts, "a", {"engine": 2.5, "user": 1.0})
        report_time(ledger.scripts, "b", {"engine": 1.0})
    ledger.redis.hset(ledger.keys.spent, "other", "hello")
    assert spent(ledger) == {**dict.fromkeys(WAITS, 0.0), "engine": 3.5, "user": 1.0}


def test_a_job_that_was_played_is_counted(runner: JobRunner, ledger: Ledger) -> None:
    (job_id,) = ledger.submit([Job(run="r", group="g", env="shop", task=0)]).new
    looked = runner.time_spent.engine._engine.generate

    def generate(*args: Any, **options: Any) -> Any:
        runner.time_spent.look(1.0, 0.0)
        return looked(*args, **options)

    runner.time_spent.engine._engine.generate = generate  # type: ignore[method-assign]
    played = runner.run(job_id)
    runner.time_spent.report()
    assert spent(ledger)["engine"] == played["turns"]
    assert not runner.time_spent.engine.asking

"""Routed experts from the engine to the trainer: also over an attempt that fails."""

from collections.abc import Iterator
from typing import Any

import pytest

from rollq.errors import ContractError, EngineFailure
from rollq.ledger.ledger import Ledger
from rollq.training.arrays import segment_experts
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.job_task import JobRunner
from tests.rollq.routed_experts import ASKED, SHAPE
from tests.rollq.samples import reader
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.process.ledgers import running, submit
from tests.rollq_worker.process.replay_servers import MoeServer, experts_of

JOB = "r/g/0"


class Failing(EnginePool):
    """Fails before its `at`-th generation, once."""

    at = 0
    calls = 0

    def generate(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise EngineFailure("it went away")
        return super().generate(*args, **options)


@pytest.fixture(scope="module")
def moe_url() -> Iterator[str]:
    with replaying(MoeServer) as url:
        yield url


@pytest.fixture
def moe(ledger: Ledger, moe_url: str) -> Iterator[JobRunner]:
    with running(ledger, moe_url, pool=Failing) as found:
        yield found


def run_until_done(runner: JobRunner, ledger: Ledger) -> list[str]:
    """How each attempt ended."""
    found: list[str] = []
    while "done" not in found and len(found) < 5:
        ledger.redis.hset(ledger.keys.job(JOB), "not_before", 0)  # without the backoff
        summary = runner.run(JOB)
        found.append(summary.get("failure") or summary["stop"])
    return found


def check(ledger: Ledger) -> Trajectory:
    """Each token has the row that the engine made up for it."""
    [trajectory] = reader(ledger).read([JOB], [ROUTED_EXPERTS])
    assert not isinstance(trajectory, ContractError)
    for segment, experts in zip(trajectory.segments(), segment_experts(trajectory), strict=True):
        ids = [*segment.prompt_ids, *segment.response_ids]
        rows = [experts_of(id, place, SHAPE) for place, id in enumerate(ids[:-1])]
        assert experts.reshape(len(ids), -1)[:-1].tolist() == rows
    return trajectory


@pytest.mark.parametrize("history", ["keep", "template"])
def test_a_trainer_gets_the_rows_of_every_token(
    moe: JobRunner, ledger: Ledger, history: str
) -> None:
    submit(ledger, routed_experts=ASKED, history=history)
    assert run_until_done(moe, ledger) == ["done"]
    assert check(ledger).turns > 2


def test_an_attempt_that_resumes_keeps_the_rows_of_finished_turns(
    moe: JobRunner, ledger: Ledger
) -> None:
    submit(ledger, routed_experts=ASKED)
    moe.engine.at = 3  # type: ignore[attr-defined]
    assert run_until_done(moe, ledger) == ["engine", "done"]
    calls = moe.engine.calls  # type: ignore[attr-defined]
    trajectory = check(ledger)
    assert calls == trajectory.turns + 1, "no turn was sampled twice"

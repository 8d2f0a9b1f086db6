"""A worker gives jobs back that it cannot play."""

import msgpack
import pytest

from rollq.errors import ServiceAway, SettingsError
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq_worker.environments import domain
from rollq_worker.process import job_task
from rollq_worker.process.job_task import (
    AWAY_SKIP_S,
    SHOWN_SKIPS,
    SKIP_S,
    IncompatibleRuns,
    JobRunner,
)
from tests.clock import Clock
from tests.rollq import samples
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import submit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(job_task, "time", clock := Clock())
    return clock


def test_a_run_is_skipped_for_a_minute_and_reported_a_little_longer(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    runs = IncompatibleRuns()
    for _ in range(2):
        runs.record("a", "no such file here")
    assert runs.skips("a")
    assert not runs.skips("b")
    assert runs.reasons() == {"a": "no such file here"}
    assert caplog.text.count("does not play run a") == 1
    clock.ahead += SKIP_S
    assert not runs.skips("a")
    assert runs.reasons()
    clock.ahead += (SHOWN_SKIPS - 1) * SKIP_S
    assert not runs.reasons()
    runs.record("a", "the container engine does not answer", AWAY_SKIP_S)
    clock.ahead += AWAY_SKIP_S
    assert not runs.skips("a")
    assert runs.reasons()


class TestRunsOfOthers:
    """Runs that this worker cannot play."""

    def test_another_tokenizer(
        self,
        runner: JobRunner,
        ledger: Ledger,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        jobs = [submit(ledger, group=f"g{n}") for n in range(3)]
        ledger.pin_tokenizer("another", "template")
        assert runner.run(jobs[0]) == {"stop": "refused: tokenizer"}
        for job_id in jobs:
            assert runner.run(job_id) == {"stop": "refused: left to other workers"}
        assert (
            caplog.text.count(
                "does not play run r: run r is played with another tokenizer (another, not"
            )
            == 1
        )
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["claims"], stats["failures"]) == (3, 0, {})

    def test_the_first_claim_pins_tokenizer_and_template(
        self, runner: JobRunner, ledger: Ledger
    ) -> None:
        assert runner.run(submit(ledger))["stop"] == "done"
        ledger.pin_tokenizer(runner.tokenizer.hash, runner.tokenizer.template_hash)
        with pytest.raises(SettingsError):
            ledger.pin_tokenizer("another", runner.tokenizer.template_hash)

    def test_a_job_of_a_newer_schema(
        self,
        runner: JobRunner,
        ledger: Ledger,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("rollq.wire.blob.SCHEMA", 3)
        monkeypatch.setattr("rollq.wire.codec.SCHEMA", 3)
        jobs = [submit(ledger, group=f"g{n}") for n in range(3)]
        monkeypatch.undo()
        assert runner.run(jobs[0]) == {"stop": "refused: schema"}
        for job_id in jobs:
            assert runner.run(job_id) == {"stop": "refused: left to other workers"}
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["dead"], stats["failures"]) == (3, 0, {})
        errors = [r.message for r in caplog.records if r.levelname == "ERROR"]
        assert len(errors) == 1 and "schema 3" in errors[0]

    def test_a_journal_of_a_newer_schema(
        self,
        runner: JobRunner,
        ledger: Ledger,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        job_id, sibling = submit(ledger), submit(ledger, group="h")
        begun = ledger.claim(
            job_id,
            worker="w",
            token="t",
            tokenizer_hash=runner.tokenizer.hash,
            template_hash=runner.tokenizer.template_hash,
        )
        assert isinstance(begun, Claim)
        ledger.redis.rpush(
            ledger.keys.journal(job_id), newer := msgpack.packb([3, "header", "what is new"])
        )
        ledger.release(job_id, begun.lease)
        assert runner.run(job_id) == {"job": job_id, "stop": "released"}
        for message in (job_id, sibling):
            assert runner.run(message) == {"stop": "refused: left to other workers"}
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["claims"], stats["failures"]) == (2, 2, {})
        assert ledger.redis.lrange(ledger.keys.journal(job_id), 0, -1) == [newer]
        assert samples.reap(ledger) == []  # they come again later
        errors = [r.message for r in caplog.records if r.levelname == "ERROR"]
        assert len(errors) == 1 and "schema 3" in errors[0]
        monkeypatch.setattr(job_task, "time", clock := Clock())
        clock.ahead += SKIP_S
        assert runner.run(sibling)["stop"] == "done"

    def test_a_job_whose_environment_needs_a_service_that_is_away(
        self, runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, clock: Clock
    ) -> None:
        def away(*_: object) -> None:
            raise ServiceAway("the container engine does not answer")

        jobs = [submit(ledger, group=f"g{n}") for n in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(type(domain("shop")), "open", away)
            assert runner.run(jobs[0]) == {"job": jobs[0], "stop": "released"}
            for job_id in jobs:
                assert runner.run(job_id) == {"stop": "refused: left to other workers"}
        assert runner.incompatible_runs.reasons()[ledger.run].endswith("does not answer")
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["dead"], stats["failures"]) == (3, 0, {})
        clock.ahead += AWAY_SKIP_S
        assert runner.run(jobs[1])["stop"] == "done"

    def test_a_job_whose_environment_is_a_file_that_is_not_here(
        self, runner: JobRunner, ledger: Ledger, caplog: pytest.LogCaptureFixture
    ) -> None:
        job_id = submit(ledger, env="game@0123456789ab")
        assert runner.run(job_id) == {"job": job_id, "stop": "released"}
        assert runner.incompatible_runs.reasons().keys() == {ledger.run}
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["dead"], stats["failures"]) == (1, 0, {})
        [error] = [r.message for r in caplog.records if r.levelname == "ERROR"]
        assert "game@0123456789ab" in error and "rollq worker --env FILE" in error

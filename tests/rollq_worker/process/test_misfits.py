"""A worker that meets jobs for others gives them back and takes few messages, so that the others
get them.
"""

import threading

import msgpack
import pytest

from rollq.errors import SettingsError
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq_worker.process import misfits
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.misfits import FIRST_REST_S, LEAVE_S, LONGEST_REST_S, TOLD_S, Misfits
from tests.clock import Clock
from tests.rollq import samples
from tests.rollq.client.fleets import live
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import submit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(misfits, "time", clock := Clock())
    return clock


def test_rests_grow_until_a_job_is_played(clock: Clock) -> None:
    rests: list[float] = []

    def pause(seconds: float) -> None:
        rests.append(round(seconds, 1))
        clock.ahead += seconds + 0.01

    met = Misfits(pause)
    for _ in range(6):
        met.rest()
    assert rests == [0.5, 1.0, 2.0, 4.0, LONGEST_REST_S, LONGEST_REST_S]
    met.played()
    met.rest()
    assert rests[-1] == FIRST_REST_S


def test_no_message_is_taken_before_the_last_slot_has_rested() -> None:
    over, both, gate = threading.Event(), threading.Barrier(3), list[bool]()

    def pause(seconds: float) -> None:
        assert seconds <= FIRST_REST_S  # the second one joins the rest of the first
        both.wait(60)
        over.wait(60)

    met = Misfits(pause)
    met.on_rest = gate.append
    slots = [threading.Thread(target=met.rest) for _ in range(2)]
    for slot in slots:
        slot.start()
    both.wait(60)
    assert gate == [True, True]
    over.set()
    for slot in slots:
        slot.join(60)
    assert gate == [True, True, False]


def test_a_run_is_left_for_a_minute_and_told_a_little_longer(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    met = Misfits(lambda seconds: None)
    met.meet("a", "no such file here", leave=True)
    met.meet("b", "another tokenizer")
    met.meet("b", "another tokenizer")
    assert met.leaves("a") and not met.leaves("b")
    assert met.met() == {"a": "no such file here", "b": "another tokenizer"}
    assert caplog.text.count("does not play run") == 2
    clock.ahead += LEAVE_S
    assert not met.leaves("a")
    clock.ahead += TOLD_S - LEAVE_S
    assert met.met() == {}


class TestRunsOfOthers:
    """Runs that this worker cannot play."""

    @pytest.fixture(autouse=True)
    def no_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(misfits, "FIRST_REST_S", 0.0)
        monkeypatch.setattr(misfits, "LONGEST_REST_S", 0.0)

    def test_another_tokenizer(
        self,
        runner: JobRunner,
        ledger: Ledger,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        jobs = [submit(ledger, group=f"g{n}") for n in range(3)]
        ledger.pin_tokenizer("another", "template")
        for job_id in jobs * 2:
            assert runner.run(job_id) == {"stop": "refused: tokenizer"}
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
        for job_id in jobs * 2:
            assert runner.run(job_id) == {"stop": "refused: schema"}
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
        for queues, takes in ((("other",), set()), (("rollq",), {job_id, sibling})):
            live(ledger, name="another", queues=queues)
            for message in (job_id, sibling):
                runner.run(message)
            assert (
                set(samples.reap(ledger)) == takes
            )  # other workers get them at once; where there are none, later
        errors = [r.message for r in caplog.records if r.levelname == "ERROR"]
        assert len(errors) == 1 and "schema 3" in errors[0]
        monkeypatch.setattr(misfits, "time", clock := Clock())
        clock.ahead += misfits.LEAVE_S
        assert runner.run(sibling)["stop"] == "done"

    def test_a_job_whose_environment_is_a_file_that_is_not_here(
        self, runner: JobRunner, ledger: Ledger, caplog: pytest.LogCaptureFixture
    ) -> None:
        job_id = submit(ledger, env="game@0123456789ab")
        assert runner.run(job_id) == {"job": job_id, "stop": "released"}
        assert runner.misfits.met().keys() == {ledger.run} and runner.misfits.leaves(ledger.run)
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["dead"], stats["failures"]) == (1, 0, {})
        [error] = [r.message for r in caplog.records if r.levelname == "ERROR"]
        assert "game@0123456789ab" in error and "rollq worker --env FILE" in error

"""What a message leads to: its job is claimed and played, handed back, or left alone."""

import threading
from typing import Any

import pytest
import redis

from rollq.env import Grade
from rollq.errors import Fenced, Unwritable
from rollq.job import Budget
from rollq.ledger import constants
from rollq.ledger.ledger import Ledger
from rollq.trajectory import Trajectory
from rollq_worker.episode import loop
from rollq_worker.failures import Diverged
from rollq_worker.process import episode_player, job_task
from rollq_worker.process.job_task import JobRunner
from tests.rollq.samples import reader
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.process.ledgers import FailsFirst, drain_at, running, submit


def test_a_job_is_played_to_its_end(runner: JobRunner, ledger: Ledger) -> None:
    summary = runner.run(submit(ledger))
    assert (summary["stop"], summary["reward"]) == ("done", 1.0)
    assert reader(ledger).stats()["done"] == 1 and runner.leases.held() == []


@pytest.mark.parametrize("message", ["", "no/such", "x" * 500, "None", "r/g/-1", "{'a': 1}"])
def test_a_message_that_names_no_job_is_ignored(runner: JobRunner, message: str) -> None:
    assert runner.run(message) == {"stop": "ignored"}


def test_jobs_that_cannot_be_claimed(runner: JobRunner, ledger: Ledger) -> None:
    assert runner.run("r/g/0") == {"stop": "refused: unknown"}
    job_id = submit(ledger)
    ledger.claim(job_id, worker="other", token="t")
    assert runner.run(job_id) == {"stop": "refused: leased"}


def test_nothing_is_claimed_while_no_engine_is_up(
    runner: JobRunner, ledger: Ledger, engine_url: str
) -> None:
    runner.engine.update([])
    ended: list[str] = []
    job_id = submit(ledger)
    thread = threading.Thread(target=lambda: ended.append(runner.run(job_id)["stop"]))
    thread.start()
    thread.join(0.3)
    assert not ended and reader(ledger).stats()["queued"] == 1
    runner.engine.update([engine_url])
    thread.join(60)
    assert ended == ["done"]


def test_messages_of_unknown_runs_leave_nothing_behind(runner: JobRunner, ledger: Ledger) -> None:
    for n in range(300):
        assert runner.run(f"junk{n}/g/0") == {"stop": "refused: unknown"}
    assert ledger.redis.dbsize() == 0
    assert runner.run(submit(ledger))["stop"] == "done"
    # the worker still pins a run's tokenizer
    assert ledger.redis.hget(ledger.keys.meta, "tokenizer_hash").decode() == runner.tokenizer.hash


def test_a_job_that_cannot_be_read(runner: JobRunner, ledger: Ledger) -> None:
    job_id = submit(ledger)
    ledger.redis.hset(ledger.keys.job(job_id), "body", b"junk")
    assert runner.run(job_id) == {"stop": "refused: unreadable"}
    assert reader(ledger).stats()["failures"] == {"job": 1}


@pytest.mark.parametrize("key", ["run", "job", "group", "journal", "queued", "leased"])
def test_a_key_of_another_type_refuses_the_claim_once(
    key: str, runner: JobRunner, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    job_id, other = submit(ledger), submit(Ledger(ledger.redis, "other"), run="other")
    name = f"{ledger.keys.prefix}{key}" + {"job": f":{job_id}", "group": ":g"}.get(key, "")
    name += f":{job_id}" if key == "journal" else ""
    ledger.redis.set(name, "junk")
    assert runner.run(job_id) == {"stop": "refused: damaged"}
    (refusal,) = [r for r in caplog.records if "refused by the ledger" in r.message]
    assert f"{name} is a string" in refusal.message
    assert runner.run(other)["stop"] == "done"


@pytest.mark.parametrize("key", ["group", "journal", "ready"])
@pytest.mark.parametrize("failing", [False, True], ids=["completing", "failing"])
def test_a_key_of_another_type_ends_an_attempt(
    key: str,
    failing: bool,
    runner: JobRunner,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job_id, other = submit(ledger), submit(Ledger(ledger.redis, "other"), run="other")
    keys = {
        "group": ledger.keys.group("g"),
        "journal": ledger.keys.journal(job_id),
        "ready": f"{ledger.keys.prefix}ready:train",
    }
    play = loop.play

    def damage(*args: Any, **options: Any) -> Any:
        trajectory = play(*args, **options)
        ledger.redis.set(keys[key], "junk")
        if failing:
            raise ZeroDivisionError
        return trajectory

    with monkeypatch.context() as patch:
        patch.setattr(loop, "play", damage)
        summary = runner.run(job_id)
    if key != "group" and failing:  # failing does not touch it
        assert summary["failure"] == "worker"
    else:
        assert summary["stop"] in ("released", "fenced")
        (refusal,) = [r for r in caplog.records if "refused by the ledger" in r.message]
        assert f"{keys[key]} is a string" in refusal.message
    assert runner.run(other)["stop"] == "done"


def test_a_run_that_waits_for_weights_leaves_the_slots_to_others(
    runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_task, "WEIGHTS_PAUSE_S", 0.0)
    job_id = submit(ledger)
    with runner.engine.waits_for_weights("r/other/0"):
        assert runner.run(job_id) == {"stop": "refused: no engine has the run's weights"}
    ledger.confirm([job_id])  # of the message that was just spent
    due_in_s = ledger.redis.zscore(ledger.keys.queued, job_id) - ledger.scripts.now()
    assert constants.SENDING_S < due_in_s < 11


class TestDraining:
    def test_a_message_that_comes_too_late_goes_back(
        self, runner: JobRunner, ledger: Ledger
    ) -> None:
        job_id = submit(ledger)
        runner.draining.set()
        assert runner.run(job_id) == {"stop": "bounced"}
        assert reader(ledger).stats()["claims"] == 0
        assert 0 < ledger.redis.zscore(ledger.keys.queued, job_id) < 1

    def test_a_message_is_dropped_when_redis_is_away_as_well(
        self, runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = submit(ledger)
        runner.draining.set()
        refuse = FailsFirst(ledger.resend, redis.ConnectionError("refused"))
        monkeypatch.setattr(runner.ledger_of("r"), "resend", refuse)
        assert runner.run(job_id) == {"stop": "bounced"}
        runner.draining.clear()
        assert runner.run(job_id)["stop"] == "done"

    def test_a_running_episode_is_released_and_resumed(
        self, runner: JobRunner, ledger: Ledger
    ) -> None:
        job_id = submit(ledger)
        drain_at(runner, ledger, job_id, 4)
        assert runner.run(job_id) == {"job": job_id, "stop": "released"}
        stats = reader(ledger).stats()
        assert (stats["queued"], stats["released"], stats["failures"]) == (1, 1, {})
        runner.draining.clear()
        assert runner.run(job_id)["stop"] == "done"
        assert reader(ledger).stats()["resumed"] == 1

    def test_an_episode_that_does_not_repeat_itself_begins_again_at_no_cost(
        self, runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = submit(ledger)
        drain_at(runner, ledger, job_id, 4)
        for _ in range(3):
            assert runner.run(job_id)["stop"] == "released"
            runner.draining.clear()
            with monkeypatch.context() as patch:
                patch.setattr(loop, "play", FailsFirst(loop.play, Diverged("another output")))
                assert runner.run(job_id)["stop"] == "released"
        runner.ledger_of("r").append = ledger.append  # type: ignore[method-assign]
        assert runner.run(job_id)["stop"] == "done"
        stats = reader(ledger).stats()
        assert (stats["done"], stats["released"], stats["failures"]) == (1, 6, {})
        state = reader(ledger).job(job_id)
        assert state is not None and list(state.set_aside) == [2, 4, 6]


class TestRedis:
    def test_claiming_waits_for_it(
        self, runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = submit(ledger)
        errors = [redis.ConnectionError("refused"), Unwritable("full"), redis.TimeoutError("slow")]
        claims = FailsFirst(runner.ledger_of("r").claim, *errors)
        monkeypatch.setattr(runner.ledger_of("r"), "claim", claims)
        assert runner.run(job_id)["stop"] == "done"
        assert not claims.errors

    def test_without_memory_what_runs_goes_on_and_what_is_new_waits(
        self, runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        running, waiting = submit(ledger), submit(ledger, group="h")
        ended: list[str] = []
        play = loop.play

        def play_without_memory(*args: Any, **options: Any) -> Any:
            ledger.redis.config_set("maxmemory", 1)
            return play(*args, **options)

        monkeypatch.setattr(loop, "play", play_without_memory)
        try:
            assert runner.run(running)["stop"] == "done"
            thread = threading.Thread(target=lambda: ended.append(runner.run(waiting)["stop"]))
            thread.start()
            thread.join(0.2)
            assert not ended and reader(ledger).stats()["queued"] == 1
        finally:
            monkeypatch.setattr(loop, "play", play)
            ledger.redis.config_set("maxmemory", 0)
        thread.join(60)
        assert ended == ["done"]


class TestFailures:
    def play(
        self, runner: JobRunner, monkeypatch: pytest.MonkeyPatch, error: BaseException, job_id: str
    ) -> dict[str, Any]:
        def fail(*args: Any, **options: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(loop, "play", fail)
            return runner.run(job_id)

    class PanicException(BaseException):
        """As pyo3 raises it."""

    @pytest.mark.parametrize("error", [KeyError, PanicException])
    def test_a_bug_costs_one_attempt(
        self,
        runner: JobRunner,
        ledger: Ledger,
        monkeypatch: pytest.MonkeyPatch,
        error: type[BaseException],
    ) -> None:
        summary = self.play(runner, monkeypatch, error("a bug"), submit(ledger))
        assert (summary["failure"], summary["then"]) == ("worker", "queued")
        state = reader(ledger).job("r/g/0")
        assert state is not None and error.__name__ in state.reason and "Traceback" in state.reason

    def test_a_reward_function_that_fails_is_asked_again_about_the_same_episode(
        self, runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Trajectory] = []

        def grade(trajectory: Trajectory, grade: Grade) -> float:
            seen.append(trajectory)
            return float("nan") if len(seen) == 1 else 0.5

        monkeypatch.setattr(episode_player, "reward_factory", lambda *args, **more: grade)
        job_id = submit(ledger, reward="mine")
        summary = runner.run(job_id)
        assert (summary["failure"], summary["then"]) == ("reward", "queued")
        ledger.redis.hdel(ledger.keys.job(job_id), "not_before")  # its backoff
        assert runner.run(job_id)["reward"] == 0.5
        assert seen[0].tokens == seen[1].tokens
        times = [[event.at for event in trajectory.events] for trajectory in seen]
        assert times[0] == times[1]  # from the journal

    def test_a_lost_lease_is_no_failure(
        self, runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        summary = self.play(runner, monkeypatch, Fenced("lost"), submit(ledger))
        assert summary == {"job": "r/g/0", "stop": "fenced"}
        assert not reader(ledger).stats()["failures"]

    def test_the_deadline_blames_the_engine_that_was_waited_for(self, ledger: Ledger) -> None:
        with replaying(latency=1000.0) as slow, running(ledger, slow) as runner:
            runner.leases.start()
            summary = runner.run(submit(ledger, budget=Budget(deadline_s=4.0)))
            runner.leases.stop()
        assert (summary["failure"], summary["then"]) == ("engine", "queued")
        state = reader(ledger).job("r/g/0")
        assert state is not None and state.reason.startswith(
            "past the deadline of 4 s while waiting for the engine"
        )

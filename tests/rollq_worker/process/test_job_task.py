"""What a message leads to: a job claimed and played, handed back, or left alone."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rollq.errors import Fenced, SettingsError, Unwritable
from rollq.job import Budget, Job
from rollq.ledger.connection import connect
from rollq.ledger.ledger import Ledger
from rollq.settings import Settings
from rollq_worker.engine.quarantine import Poison
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.episode import loop
from rollq_worker.process import job_task
from rollq_worker.process.job_task import Player
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.clock import Clock
from tests.conftest import free_port
from tests.rollq_worker.engine.engines import replaying


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    with replaying() as url:
        yield url


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    client = connect(redis_url)
    yield Ledger(client, "r")
    client.close()


@pytest.fixture
def player(ledger: Ledger, engine_url: str, redis_url: str) -> Iterator[Player]:
    tokenizer = load_tokenizer(None)
    engine = SGLangEngine(engine_url, vocab_size=tokenizer.vocab_size)
    settings = Settings(redis_url=redis_url, engine_url=engine_url, concurrency=4)
    yield Player(settings, ledger.redis, engine, tokenizer, "w", threading.Event())
    engine.close()


def submit(ledger: Ledger, **job: Any) -> str:
    made = Job(**{"run": "r", "group": "g", "env": "shop", "task": 0, **job})
    ledger.submit([made])
    return made.id


class Failing:
    """Raises these first, then does as the method does."""

    def __init__(self, method: Callable[..., Any], *errors: Exception) -> None:
        self.method, self.errors = method, list(errors)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.method(*args, **options)


def test_a_job_is_played_to_its_end(player: Player, ledger: Ledger) -> None:
    summary = player.play(submit(ledger))
    assert (summary["stop"], summary["reward"]) == ("done", 1.0)
    assert ledger.stats()["done"] == 1 and player.leases.held() == []


@pytest.mark.parametrize("message", ["", "no/such", "x" * 500, "None", "r/g/-1", "{'a': 1}"])
def test_a_message_that_names_no_job_is_ignored(player: Player, message: str) -> None:
    assert player.play(message) == {"stop": "ignored"}


def test_jobs_that_are_not_to_be_had(player: Player, ledger: Ledger) -> None:
    assert player.play("r/g/0") == {"stop": "refused: unknown"}
    job_id = submit(ledger)
    ledger.claim(job_id, worker="other", token="t")
    assert player.play(job_id) == {"stop": "refused: leased"}


def test_messages_of_runs_that_there_are_not_leave_nothing_behind(
    player: Player, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(job_task.KNOWN + 10):
        assert player.play(f"junk{n}/g/0") == {"stop": "refused: unknown"}
    assert ledger.redis.dbsize() == 0
    assert player.ledger.cache_info().currsize == job_task.KNOWN
    assert player.play(submit(ledger))["stop"] == "done"  # and the worker still fixes what a run is rendered with
    assert ledger.redis.hget(ledger.keys.meta, "tokenizer_hash").decode() == player.tokenizer.hash


def test_a_job_that_cannot_be_read(player: Player, ledger: Ledger) -> None:
    job_id = submit(ledger)
    ledger.redis.hset(ledger.keys.job(job_id), "body", b"junk")
    assert player.play(job_id) == {"stop": "refused: unreadable"}
    assert ledger.stats()["failures"] == {"job": 1}


def test_a_damaged_record_takes_nothing_down(player: Player, ledger: Ledger) -> None:
    job_id = submit(ledger)
    ledger.redis.delete(ledger.keys.job(job_id))
    ledger.redis.set(ledger.keys.job(job_id), "junk")
    assert player.play(job_id) == {"stop": "refused: dead"}
    assert ledger.stats()["failures"] == {"job": 1}


@pytest.mark.parametrize("key", ["group", "journal", "ready"])
@pytest.mark.parametrize("failing", [False, True], ids=["completing", "failing"])
def test_a_key_that_is_damaged_under_an_attempt_costs_nothing(
    key: str,
    failing: bool,
    player: Player,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(job_task, "REFUSED_S", 0.0)
    job_id = submit(ledger)
    keys = {
        "group": ledger.keys.group("g"),
        "journal": ledger.keys.journal(job_id),
        "ready": ledger.keys.ready("train"),
    }
    play = loop.play

    def damage(*args: Any, **options: Any) -> Any:
        trajectory = play(*args, **options)
        if ledger.redis.exists(keys[key]):
            ledger.redis.rename(keys[key], "kept")
        ledger.redis.set(keys[key], "junk")
        if failing:
            raise ZeroDivisionError
        return trajectory

    monkeypatch.setattr(loop, "play", damage)
    summary = player.play(job_id)
    if key == "journal" and failing:  # which failing does not touch
        assert summary["failure"] == "worker"
        return
    assert summary == {"job": job_id, "stop": "released"}
    refusals = [r for r in caplog.records if "refused by the ledger" in r.message]
    assert len(refusals) == 1 and f"{keys[key]} is a string" in refusals[0].message
    assert not any(r.exc_info for r in caplog.records) or failing  # the ZeroDivisionError's own
    stats = ledger.redis.hgetall(ledger.keys.count)
    assert not [name for name in stats if name.startswith(b"failures:")]
    ledger.redis.delete(keys[key])  # as an operator repairs it
    if ledger.redis.exists("kept"):
        ledger.redis.rename("kept", keys[key])
    monkeypatch.setattr(loop, "play", play)
    assert player.play(job_id)["stop"] == "done"


def test_a_run_with_another_tokenizer(player: Player, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    job_id = submit(ledger)
    ledger.fix_hashes("another", "template")
    for _ in range(3):
        assert player.play(job_id) == {"stop": "refused: another tokenizer"}
    assert caplog.text.count("does not play run") == 1  # messages come by the hundred
    with pytest.raises(SettingsError):
        ledger.fix_hashes("third", "template")
    assert ledger.stats()["queued"] == 1


class TestDraining:
    def test_a_message_that_comes_too_late_goes_back(self, player: Player, ledger: Ledger) -> None:
        job_id = submit(ledger)
        player.draining.set()
        assert player.play(job_id) == {"stop": "bounced"}
        assert ledger.stats()["claims"] == 0
        assert ledger.redis.zscore(ledger.keys.queued, job_id) == 0

    def test_and_when_redis_is_away_as_well(
        self, player: Player, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = submit(ledger)
        player.draining.set()
        refuse = Failing(ledger.bounce, redis.ConnectionError("refused"))
        monkeypatch.setattr(player.ledger("r"), "bounce", refuse)
        assert player.play(job_id) == {"stop": "bounced"}

    def test_a_running_episode_is_released_and_gone_on_with(self, player: Player, ledger: Ledger) -> None:
        job_id = submit(ledger)
        lately = player.ledger("r").append

        def append(*args: Any, **options: Any) -> None:
            lately(*args, **options)
            if len(ledger.journal(job_id)) == 4:
                player.draining.set()

        player.ledger("r").append = append  # type: ignore[method-assign]
        assert player.play(job_id) == {"job": job_id, "stop": "released"}
        stats = ledger.stats()
        assert (stats["queued"], stats["released"], stats["failures"]) == (1, 1, {})
        player.draining.clear()
        assert player.play(job_id)["stop"] == "done"
        assert ledger.stats()["resumed"] == 1

    def test_while_the_engine_is_away(self, ledger: Ledger, redis_url: str) -> None:
        engine = SGLangEngine(f"http://127.0.0.1:{free_port()}")
        assert not engine.ready()
        player = Player(
            Settings(redis_url=redis_url), ledger.redis, engine, load_tokenizer(None), "w", threading.Event()
        )
        ready = engine.ready

        def away() -> bool:
            player.draining.set()  # here: while it is being waited for
            return ready()

        engine.ready = away  # type: ignore[method-assign]
        assert player.play(submit(ledger)) == {"stop": "bounced"}
        assert ledger.stats()["claims"] == 0
        engine.close()


class TestRedis:
    def test_claiming_waits_for_it(self, player: Player, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rollq.ledger.retry.FIRST_PAUSE_S", 0.01)
        job_id = submit(ledger)
        errors = [redis.ConnectionError("refused"), Unwritable("full"), redis.TimeoutError("slow")]
        claims = Failing(player.ledger("r").claim, *errors)
        monkeypatch.setattr(player.ledger("r"), "claim", claims)
        assert player.play(job_id)["stop"] == "done"
        assert not claims.errors


class TestFailures:
    def play(
        self, player: Player, monkeypatch: pytest.MonkeyPatch, error: BaseException, job_id: str
    ) -> dict[str, Any]:
        def fail(*args: Any, **options: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(loop, "play", fail)
            return player.play(job_id)

    def test_a_bug_of_ours_costs_one_attempt(
        self, player: Player, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        summary = self.play(player, monkeypatch, KeyError("a bug"), submit(ledger))
        assert (summary["stop"], summary["failure"], summary["then"]) == ("failed", "worker", "queued")
        state = ledger.job("r/g/0")
        assert state is not None and "KeyError: 'a bug'" in state.reason and "Traceback" in state.reason

    def test_so_does_a_panic_in_rust_code(
        self, player: Player, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class PanicException(BaseException):
            """As pyo3 raises it."""

        summary = self.play(player, monkeypatch, PanicException("index out of bounds"), submit(ledger))
        assert (summary["stop"], summary["failure"], summary["then"]) == ("failed", "worker", "queued")

    def test_a_job_that_kills_engines_is_dead_at_once(
        self, player: Player, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        summary = self.play(player, monkeypatch, Poison("r/g/0: this job kills engines"), submit(ledger))
        assert (summary["failure"], summary["then"]) == ("job", "dead")
        assert ledger.stats()["dead"] == 1

    def test_a_lost_lease_is_nobodys_failure(
        self, player: Player, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        summary = self.play(player, monkeypatch, Fenced("lost"), submit(ledger))
        assert summary == {"job": "r/g/0", "stop": "fenced"}
        assert not ledger.stats()["failures"]

    def test_the_deadline_blames_what_was_waited_for(
        self, ledger: Ledger, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rollq_worker.process.leases.time", clock := Clock())
        with replaying(latency=1000.0) as slow:
            engine = SGLangEngine(slow)
            settings = Settings(redis_url=redis_url, engine_url=slow)
            player = Player(settings, ledger.redis, engine, load_tokenizer(None), "w", threading.Event())
            send = engine._send

            def late(*args: Any) -> Any:
                clock.ahead += 2000.0  # here: what comes next is the engine
                return send(*args)

            engine._send = late  # type: ignore[method-assign]
            player.leases.start()
            start = time.monotonic()
            summary = player.play(submit(ledger, budget=Budget(deadline_s=1000.0)))
            player.leases.stop()
            player.leases._thread.join(60)
            engine.close()
        assert (summary["failure"], summary["then"]) == ("engine", "queued")
        assert time.monotonic() - start < 100  # a tenth of a generation
        state = ledger.job("r/g/0")
        assert state is not None and state.reason.startswith("past the deadline of 1000 s while waiting for the engine")

"""Each condition that holds a run up, from a real Redis in the state of each, and its remedy."""

from dataclasses import replace
from typing import Any

import pytest

from rollq.client.client import Client
from rollq.client.waits import explain
from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger.constants import CONFIRMED_S, LONGEST_BACKOFF_S
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import RUNS
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import (
    AWAY,
    MODEL_AWAY,
    OUTDATED,
    PAUSED,
    READY,
    SILENT_S,
    STALLED,
    Wait,
    live_workers,
)
from rollq.snapshot import fleet
from rollq.snapshot.fleet import read_one_run
from rollq.snapshot.holdups import CONDITIONS, Holdup, RunView, find_holdup, other_runs, run_holdup
from tests.rollq.client.fleets import live, used
from tests.rollq.groups import drop_group, finish_groups
from tests.rollq.samples import claim, group, reader

DEADLOCK = "producer and consumer wait for each other"


def found(ledger: Ledger, purpose: Purpose = Purpose.TRAIN, **view: int) -> Holdup:
    snapshot = read_one_run(reader(ledger))
    holdup = find_holdup(RunView(fleet=snapshot, run=snapshot.runs[0], purpose=purpose, **view))
    return holdup or Holdup("", "")


def condition(ledger: Ledger, purpose: Purpose = Purpose.TRAIN, **view: int) -> str:
    return found(ledger, purpose, **view).condition


def test_a_producer_and_a_consumer_wait_for_each_other(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, *"abcd")
    with client.consumer() as consumer:
        assert consumer.next(4)
        assert condition(ledger, ahead=4) == ""  # it trains
        assert condition(ledger, ahead=4, asks_for=4) == DEADLOCK
        assert ledger.submit(group("e"), ahead=4).full
        assert condition(ledger, asks_for=4) == DEADLOCK  # others know of the producer, too
        ledger.seal()
        assert condition(ledger, asks_for=4) == ""


def test_no_consumer_takes_what_is_ready(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "a", "b")
    assert condition(ledger) == ""  # nobody waits
    assert "`rollq pull --run r --groups 2`" in found(ledger, ahead=2).text
    finish_groups(ledger, "e", purpose=Purpose.EVAL)
    assert "--groups 1 --purpose eval`" in found(ledger, Purpose.EVAL, ahead=1).text
    assert ledger.submit(group("c"), ahead=2).full
    assert condition(ledger) == "no consumer"


def test_a_run_that_does_not_exist(redis_url: str, ledger: Ledger) -> None:
    assert condition(ledger, asks_for=1) == "no such run"
    ledger.submit(group())
    other = Ledger(ledger.redis, "q")
    assert "it does not exist yet; runs there: r" in found(other, asks_for=1).text
    ledger.redis.zadd(RUNS, {"q": 1})
    assert "nothing was submitted to it yet" in found(other, asks_for=1).text


def test_the_run_that_was_meant_is_named() -> None:
    there = [f"retail-{n}" for n in range(7)]
    text = other_runs("retial-3", there)
    assert text.startswith("did you mean 'retail-3'? ") and "and 2 more" in text
    assert other_runs("x", ["retail"]) == "runs there: retail"


def test_nothing_is_left(client: Client, ledger: Ledger) -> None:
    """Everything was acknowledged or dropped, and the run is not sealed, or its seal was lost."""
    finish_groups(ledger, "a", "b")
    next(client.batches(2)).ack()
    assert condition(ledger) == ""
    assert condition(ledger, asks_for=1) == "too few groups"
    finish_groups(ledger, "c")
    assert condition(ledger, asks_for=1) == ""
    ledger.submit(group("d"))
    drop_group(ledger, "d")
    assert "2 acknowledged, 1 dropped" in found(ledger, asks_for=2).text


def test_the_groups_are_for_another_purpose(ledger: Ledger) -> None:
    finish_groups(ledger, "a", purpose=Purpose.EVAL)
    assert "1 of another --purpose" in found(ledger, asks_for=1).text
    assert condition(ledger, Purpose.EVAL, asks_for=1) == ""


def test_only_dead_jobs_are_left(ledger: Ledger) -> None:
    ledger.pin_budgets({FailureClass.ENV: 1, FailureClass.JOB: 1})
    ledger.submit(group("a", size=1))
    held = claim(ledger, "r/a/0")
    ledger.fail(held.job.id, held.lease, FailureClass.JOB, "no such task")
    assert condition(ledger) == "dead jobs"
    ledger.submit(group("e", purpose=Purpose.EVAL))
    assert condition(ledger) == ""


class TestAdmission:
    """A run that admits two groups a step."""

    def test_a_trainer_that_never_publishes(self, client: Client, ledger: Ledger) -> None:
        client.limit_staleness(2, 0)
        finish_groups(ledger, "a", "b")
        with client.consumer() as consumer:
            assert consumer.next(2)
            assert condition(ledger, asks_for=2) == "no new step"

    def test_a_trainer_that_forgets_one_step(self, client: Client, ledger: Ledger) -> None:
        client.limit_staleness(2, 0)
        finish_groups(ledger, "a", "b")
        client.publish(0)
        next(client.batches(2)).ack()
        assert ledger.submit(group("c")).full
        for view in ({"asks_for": 2}, {"ahead": 256}, {}):
            assert "`client.publish(1)`" in found(ledger, **view).text

    def test_a_trainer_that_reads_ahead_while_it_trains(
        self, client: Client, ledger: Ledger
    ) -> None:
        client.limit_staleness(2, 1)
        finish_groups(ledger, *"abcd")
        client.publish(0)
        with client.consumer() as consumer:
            for _ in range(4):
                assert consumer.next(1)
            assert condition(ledger, asks_for=1) == "no new step"
            assert ledger.submit(group("e")).full
            assert condition(ledger, ahead=256) == condition(ledger) == ""

    def test_a_producer_waits_for_a_trainer(self, client: Client, ledger: Ledger) -> None:
        client.limit_staleness(2, 0)
        finish_groups(ledger, "a", "b")
        assert condition(ledger) == ""  # nothing waits
        assert ledger.submit(group("c")).full
        assert condition(ledger, ahead=256) == "no consumer"
        with client.consumer() as consumer:
            assert consumer.next(2)
            assert condition(ledger, ahead=256) == ""  # it trains


@pytest.mark.parametrize(
    "view", [{"asks_for": 1}, {"ahead": 1}, {}], ids=["consumer", "producer", "onlooker"]
)
class TestWorkers:
    """The same for all sides: a consumer, a producer, and a person with `rollq stats`."""

    def test_none_is_alive(self, ledger: Ledger, view: dict[str, int]) -> None:
        ledger.submit(group())
        assert condition(ledger, **view) == "no worker"
        live(ledger)
        assert condition(ledger, **view) == ""

    def test_they_serve_other_queues(self, ledger: Ledger, view: dict[str, int]) -> None:
        ledger.submit(group(queue="qwen"))
        live(ledger, "v", queues=("llama",))
        assert condition(ledger, **view) == "no worker of the queue"
        assert "`rollq worker --queues qwen`" in found(ledger, **view).text
        live(ledger, "u", queues=("qwen",))
        assert condition(ledger, **view) == ""

    def test_they_have_another_tokenizer(
        self, client: Client, ledger: Ledger, view: dict[str, int]
    ) -> None:
        client.pin_tokenizer("t2", "c1")
        ledger.submit(group())
        live(ledger)
        assert condition(ledger, **view) == "no worker that fits"
        assert "w: it has another tokenizer" in found(ledger, **view).text

    def test_they_have_no_file_that_the_run_needs(
        self, ledger: Ledger, view: dict[str, int]
    ) -> None:
        ledger.submit(group())
        live(ledger, left_alone=(("r", "there is no such file here."), ("s", "another reason")))
        assert found(ledger, **view).text.endswith("w: there is no such file here")
        # It may play what is of another environment, of which it has the file.
        live(ledger, left_alone=(("r", "no file"),), waits=(Wait("r/g/0", "engine", 2.0),))
        assert condition(ledger, **view) == ""
        live(ledger, "v", left_alone=(("s", "another reason"),))
        assert condition(ledger, **view) == ""

    def test_nothing_was_heard_of_them(
        self, ledger: Ledger, view: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after kill -9 of a worker, before its entry is gone."""
        ledger.submit(group())
        claim(ledger, "r/g/0")
        live(ledger)
        live(ledger, "v")
        workers = [replace(worker, age_s=SILENT_S) for worker in live_workers(ledger.redis)]
        monkeypatch.setattr(fleet, "known_workers", lambda client: workers)
        assert condition(ledger, **view) == "silent worker"
        workers[0] = replace(workers[0], age_s=0)
        assert f"nothing was heard of w for {SILENT_S} s" in found(ledger, **view).text

    @pytest.mark.parametrize("state", [AWAY, PAUSED, STALLED, OUTDATED])
    def test_their_engine_generates_nothing(
        self, ledger: Ledger, view: dict[str, int], state: str
    ) -> None:
        ledger.submit(group())
        live(ledger, engines=(used("http://a", state),))
        assert condition(ledger, **view) == "idle engine"
        assert "the engine http://a " in found(ledger, **view).text
        live(ledger, engines=(used("http://a", state), used("http://b", READY)))
        assert condition(ledger, **view) == ("" if state == OUTDATED else "idle engine")
        live(ledger, engine=AWAY)
        assert "the engine of w is away" in found(ledger, **view).text

    def test_the_engines_of_a_teacher_are_away(self, ledger: Ledger, view: dict[str, int]) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        away = f"{MODEL_AWAY} 'large'"
        live(ledger, waits=(Wait("r/g/0", away, 2.0), Wait("r/g/1", "the teacher 'math'", 1.0)))
        assert condition(ledger, **view) == "no engine of a model"
        assert f"and {away} is away" in found(ledger, **view).text
        live(ledger, waits=(Wait("other/g/0", away, 2.0),))
        assert condition(ledger, **view) == ""

    def test_their_adapter_is_not_published(
        self, client: Client, ledger: Ledger, view: dict[str, int]
    ) -> None:
        ledger.submit(group(adapter="math"))
        live(ledger)
        assert condition(ledger, **view) == "no adapter"
        client.publish(0)
        assert condition(ledger, **view) == ""

    def test_the_broker_gets_no_messages(self, ledger: Ledger, view: dict[str, int]) -> None:
        ledger.submit(group())
        live(ledger)
        ledger.redis.zadd(ledger.keys.queued, {"r/g/0": reader(ledger).scripts.now() - 40})
        assert condition(ledger, **view) == "no messages"

    def test_what_was_interrupted_is_not_late(self, ledger: Ledger, view: dict[str, int]) -> None:
        """It is due at once, and no time says since when."""
        ledger.submit(group(size=3))
        live(ledger)
        held = claim(ledger, "r/g/0")
        ledger.fail(held.job.id, held.lease, FailureClass.ENV, "it broke")
        assert 0 < float(ledger.redis.zscore(ledger.keys.queued, "r/g/0") or 0) < 1
        assert condition(ledger, **view) == ""

    def test_they_get_no_messages(self, ledger: Ledger, view: dict[str, int]) -> None:
        ledger.submit(group())
        live(ledger)
        now = reader(ledger).scripts.now()
        sent = {f"r/g/{n}": now + CONFIRMED_S - 40 for n in range(2)}
        ledger.redis.zadd(ledger.keys.queued, sent)
        assert condition(ledger, **view) == "no messages"
        live(ledger, busy=1)  # with another run
        assert condition(ledger, **view) == ""
        live(ledger)
        ledger.redis.zadd(ledger.keys.queued, dict.fromkeys(sent, now + LONGEST_BACKOFF_S))
        assert condition(ledger, **view) == ""  # they wait for their backoff

    def test_redis_takes_no_writes(self, ledger: Ledger, view: dict[str, int]) -> None:
        """Workers that cannot register are not called dead."""
        ledger.submit(group())
        ledger.redis.config_set("maxmemory", 1)
        try:
            assert condition(ledger, **view) == "redis takes no writes"
        finally:
            ledger.redis.config_set("maxmemory", 0)

    def test_their_jobs_fail_again_and_again(self, ledger: Ledger, view: dict[str, int]) -> None:
        ledger.submit(group("g", size=3))
        live(ledger, busy=1)
        reason = "user endpoint 'local' answered 429\x1b[31m \u202e" + "x" * 1000 + "\nTraceback"
        for lease in [claim(ledger, f"r/g/{n}") for n in (0, 1)]:
            ledger.fail(lease.job.id, lease.lease, FailureClass.USER, reason)
        text = found(ledger, **view).text
        assert "by user: user endpoint 'local' answered 429\\x1b[31m \\u202exxx" in text
        assert condition(ledger, **view) == "failing jobs" and len(text) < 500
        claim(ledger, "r/g/2")  # what is played counts, if anything is
        assert condition(ledger, **view) == ""

    def test_jobs_that_are_played_again_have_not_failed(
        self, ledger: Ledger, view: dict[str, int]
    ) -> None:
        ledger.submit(group("g"))
        letters = DeadLetters(ledger.redis, "r")
        letters.cancel("r/g/0")
        letters.requeue("r/g/0")
        live(ledger, busy=1)
        assert condition(ledger, **view) == ""

    def test_ordinary_waits_are_none(self, ledger: Ledger, view: dict[str, int]) -> None:
        ledger.submit(group("g", size=3))
        claim(ledger, "r/g/0")
        live(ledger, busy=4, waits=(Wait("r/g/0", "the user", 75.0),))
        assert condition(ledger, **view) == ""


def test_a_holdup_of_either_purpose_is_seen_the_first_cause_first(ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    ledger.submit(group("e", purpose=Purpose.EVAL))
    assert "no worker is alive" in run_holdup(read_one_run(reader(ledger)))


def test_every_condition_has_words_that_fit() -> None:
    """Whatever a row names is there."""

    class AnyView:
        def __getattr__(self, name: str) -> Any:
            assert hasattr(RunView, name) or name in {"run", "fleet"}, name
            return _Anything()

    class _Anything:
        def __getattr__(self, name: str) -> Any:
            return _Anything()

    for name, row in CONDITIONS.items():
        assert (row.words + row.remedy).format(v=AnyView()) and row.words, name


def test_what_cannot_be_read_is_the_explanation(ledger: Ledger) -> None:
    finish_groups(ledger, "g")
    ledger.redis.set(f"{ledger.keys.prefix}held:train", "garbage")
    assert "rollq:{r}:held:train" in explain(reader(ledger), Purpose.TRAIN, wanted=1)

"""The reaper's tick: what is due is sent and confirmed, whatever else is broken."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from rollq.job import Job
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import ACTIVE, RUNS, WORKERS
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim, JobMessage
from rollq.ledger.workers.live_workers import register, unregister
from rollq_worker.process import outbox as outbox_module
from rollq_worker.process import reaper as reaper_module
from rollq_worker.process.reaper import Reaper
from tests.clock import Clock
from tests.rollq.other_constants import change_constants
from tests.rollq.samples import reader
from tests.rollq_worker.process.ledgers import FakeBroker, live_worker
from tests.waiting import until


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine sends as much in a tick as an idle one."""
    monkeypatch.setattr(reaper_module, "SEND_S", 60.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reaper_module, "time", clock)
    monkeypatch.setattr(outbox_module, "time", clock)
    return clock


def new_reaper(client: "redis.Redis", broker: object) -> Reaper:
    return Reaper(client, broker, live_worker)  # type: ignore[arg-type]


def submit(client: "redis.Redis", run: str, jobs: int = 1, queue: str = "rollq") -> Ledger:
    ledger = Ledger(client, run)
    for task in range(jobs):
        job = Job(run=run, group=f"{queue}{task}", env="shop", task=task, queue=queue)
        ledger.submit([job], send_in_s=0)
    return ledger


def make_due(ledger: Ledger) -> None:
    """Every queued job shall be sent now."""
    for job_id in ledger.redis.zrange(ledger.keys.queued, 0, -1):
        ledger.redis.zadd(ledger.keys.queued, {job_id: 1})


def end(ledger: Ledger) -> None:
    """Every job of the run is over."""
    letters = DeadLetters(ledger.redis, ledger.run)
    for name in letters.open_groups():
        letters.cancel_group(name)


def test_whatever_is_due_is_sent_and_confirmed(client: "redis.Redis") -> None:
    ledger, broker = submit(client, "r", 250), FakeBroker()
    reaper = new_reaper(client, broker)
    assert reaper.tick() == 250
    assert len(set(broker.sent)) == 250
    assert reaper.tick() == 0
    scores = [score for _, score in client.zrange(ledger.keys.queued, 0, -1, withscores=True)]
    assert min(scores) > ledger.scripts.now() + 500


def test_what_the_broker_did_not_take_comes_again(client: "redis.Redis") -> None:
    ledger, broker = submit(client, "r", 4), FakeBroker(takes=3)
    assert new_reaper(client, broker).tick() == 3
    first, second, *_ = [
        score for _, score in client.zrange(ledger.keys.queued, 0, -1, withscores=True)
    ]
    assert first < ledger.scripts.now() + 10 and second > ledger.scripts.now() + 500


def test_what_was_interrupted_goes_first_whatever_its_run(client: "redis.Redis") -> None:
    submit(client, "a", 150)
    submit(client, "c", 150)
    interrupted, broker = submit(client, "b"), FakeBroker()
    claim = interrupted.claim("b/rollq0/0", worker="w", token="t")
    assert isinstance(claim, Claim)
    interrupted.release("b/rollq0/0", claim.lease)
    assert new_reaper(client, broker).tick() == 301
    assert broker.sent[0] == "b/rollq0/0"


def test_while_nobody_takes_messages_they_do_not_pile_up(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(reaper_module, "MOST_MESSAGES", 10)
    ledger, broker = submit(client, "r", 50), FakeBroker()
    reaper = new_reaper(client, broker)

    def ten_minutes_pass() -> int:
        clock.ahead += 4.0
        make_due(ledger)
        return reaper.tick()

    assert [ten_minutes_pass() for _ in range(6)] == [50, 50, 50, 0, 0, 0]
    broker.sent.clear()  # a worker has come
    clock.ahead += 4.0
    reaper.tick()  # counts them
    assert ten_minutes_pass() == 50


def test_a_message_that_the_broker_lost_is_sent_again(client: "redis.Redis", clock: Clock) -> None:
    ledger, broker = submit(client, "r", 3), FakeBroker()
    reaper = new_reaper(client, broker)
    assert reaper.tick() == 3
    for job_id in client.zrange(ledger.keys.queued, 0, -1):
        client.zincrby(ledger.keys.queued, -30, job_id)  # sent half a minute ago
    assert reaper.tick() == 0  # the messages wait at the broker
    broker.sent.clear()
    assert reaper.tick() == 0  # the reaper sees that the queue is empty
    assert reaper.tick() == 3


def test_a_run_that_cannot_be_read_holds_up_no_other(
    client: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    broken = submit(client, "a")
    submit(client, "b")
    client.delete(broken.keys.leased)
    client.set(broken.keys.leased, "junk")
    broker = FakeBroker()
    reaper = new_reaper(client, broker)
    assert reaper.tick() == 1
    assert broker.sent == ["b/rollq0/0"]
    assert "run a: LedgerError" in caplog.text
    assert "rollq jobs drop RUN --whole-run --yes" in caplog.text
    before = len(caplog.records)
    reaper.tick()
    assert len(caplog.records) == before  # it is left alone for a while


def test_a_run_whose_server_is_away_holds_up_no_other(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    submit(client, "a")
    submit(client, "b")
    reap, tries = Ledger.reap, []

    def away(self: Ledger, *args: Any) -> list[JobMessage]:
        if self.run == "a":
            tries.append(1)
            raise redis.ConnectionError("refused")
        return reap(self, *args)

    monkeypatch.setattr(Ledger, "reap", away)
    reaper = new_reaper(client, FakeBroker())
    assert reaper.tick() == 1
    reaper.tick()
    assert len(tries) == 1  # it is left alone for a while
    clock.ahead += reaper_module.LEAVE_ALONE_S + 0.1
    reaper.tick()
    assert len(tries) == 2


def commands(client: "redis.Redis", call: Callable[[], object]) -> list[str]:
    """What Redis is sent by the call, without what scripts do."""
    with client.monitor() as monitor:
        call()
        client.echo("the end")
        sent: list[str] = []
        while not sent or not sent[-1].startswith("ECHO"):
            said = monitor.next_command()
            if said["client_type"] != "lua":
                sent.append(said["command"])
    return [text.partition(" ")[0] for text in sent[:-1]]


def test_runs_without_jobs_cost_nothing(client: "redis.Redis") -> None:
    reaper = new_reaper(client, FakeBroker())
    ledgers = [submit(client, f"r{number:03}") for number in range(100)]
    assert reaper.tick() == 100
    for ledger in ledgers[1:]:
        end(ledger)
    reaper.tick()
    assert client.zrange(ACTIVE, 0, -1) == [b"r000"]
    sent = commands(client, reaper.turn)
    assert len(sent) < 12, sent
    end(ledgers[0])
    reaper.tick()
    sent = commands(client, reaper.turn)
    assert len(sent) < 7, sent


def test_a_run_that_was_lost_from_the_list_is_found_again(client: "redis.Redis") -> None:
    for number in range(3):
        submit(client, f"r{number}")
    client.delete(ACTIVE)
    reaper = new_reaper(client, FakeBroker())
    assert [reaper.tick() for _ in range(5)] == [1, 1, 1, 0, 0]
    assert client.zcard(ACTIVE) == 3


class Stuck(FakeBroker):
    """A broker that does not answer before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def send(self, messages: Sequence[JobMessage]) -> list[str]:
        self.answers.wait(60)
        return super().send(messages)


def test_a_broker_that_does_not_answer_is_no_outage(
    client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper goes on with every run, so leases expire as ever."""
    monkeypatch.setattr(reaper_module, "SEND_S", 0.1)
    change_constants(monkeypatch, GRACE_S=0.0)  # the first reap of a run counts as an outage
    ledger, broker = submit(client, "r", 2), Stuck()
    claim = ledger.claim("r/rollq0/0", worker="w", token="t")
    assert isinstance(claim, Claim)
    reaper = new_reaper(client, broker)
    assert reaper.tick() == 0  # it waits for the broker no longer than that
    first = client.hget(ledger.keys.meta, "beat")
    client.zadd(ledger.keys.leased, {f"r/rollq0/0#{claim.lease}": 1})
    assert reaper.tick() == 0
    assert client.hget(ledger.keys.meta, "beat") != first
    assert reader(ledger).stats()["expired"] == 1
    broker.answers.set()
    until(lambda: not reaper._outbox.busy)
    make_due(ledger)  # a few seconds pass
    monkeypatch.setattr(reaper_module, "SEND_S", 60.0)
    assert reaper.tick() == 2


def test_a_run_that_no_live_worker_plays_waits_and_says_so(
    client: "redis.Redis", clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, broker = submit(client, "r", 3, queue="big"), FakeBroker()
    submit(client, "r", 2)
    ledger.pin_tokenizer("other-tokenizer", "c")
    reaper = new_reaper(client, broker)

    def seconds_pass() -> int:
        clock.ahead += 6.0
        make_due(ledger)
        return reaper.tick()

    assert [seconds_pass() for _ in range(3)] == [0, 0, 0]
    assert (
        "run r waits: no live worker takes jobs of queue 'big' with its tokenizer (other-tokeni)"
        in caplog.text
    )
    assert caplog.text.count("queue 'big'") == 1
    register(client, live_worker("b", tokenizer="other-tokenizer"))
    assert seconds_pass() == 2  # those of the default queue
    register(client, live_worker("c", queues=["big"], tokenizer="other-tokenizer"))
    assert seconds_pass() == 5
    unregister(client, "c")
    assert seconds_pass() == 2
    assert reader(ledger).stats()["queued"] == 5
    seconds_pass(), seconds_pass()
    assert caplog.text.count("queue 'big'") == 2  # again after half a minute


def test_jobs_that_no_live_worker_plays_hide_no_others(client: "redis.Redis") -> None:
    submit(client, "r", 250, queue="big")
    ledger, broker = submit(client, "r", 150), FakeBroker()
    assert new_reaper(client, broker).tick() == 150
    assert {job_id.split("/")[1][:5] for job_id in broker.sent} == {"rollq"}
    assert reader(ledger).stats()["queued"] == 400


def test_what_is_not_known_of_live_workers_holds_up_nothing(
    client: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    client.set(WORKERS, "junk")
    submit(client, "r", 2, queue="big")
    reaper = new_reaper(client, FakeBroker())
    reaper.turn()
    assert (
        "the live workers are not known" in caplog.text
        and "this worker is not registered" in caplog.text
    )
    assert reader(Ledger(client, "r")).stats()["queued"] == 2
    assert len(reaper._outbox._broker.sent) == 2  # type: ignore[attr-defined]


def test_lists_of_runs_that_cannot_be_read(
    client: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    ledger = submit(client, "a")
    reaper = new_reaper(client, FakeBroker())
    assert reaper.tick() == 1
    client.delete(ACTIVE)
    client.set(RUNS, "garbage")
    client.set(ACTIVE, "garbage")
    client.zadd(ledger.keys.queued, {"a/rollq0/0": 1})
    assert reaper.tick() == 1  # the runs that it knows go on
    assert f"{RUNS}: WRONGTYPE" in caplog.text and f"{ACTIVE} is a string" in caplog.text
    before = len(caplog.records)
    reaper.tick()
    assert len(caplog.records) == before  # not at every tick
    client.delete(ACTIVE, RUNS)
    assert reaper.tick() == 0
    ledger.submit([Job(run="a", group="rollq0", env="shop", task=0)])  # known, and listed again
    client.zadd(ledger.keys.queued, {"a/rollq0/0": 1})
    assert reaper.tick() == 1
    DeadLetters(client, "a").forget_run()
    assert reaper.tick() == 0

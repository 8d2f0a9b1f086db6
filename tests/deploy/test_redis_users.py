"""The users of compose's Redis, on a real server: each can do its part, and nothing else."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from rollq import cli
from rollq.client.client import Client
from rollq.client.producing.broker import Broker
from rollq.errors import LedgerError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import JobMessage
from rollq.ledger.workers.live_workers import live_workers
from rollq.metrics.of_runs import RunMetrics
from rollq.servers.connection import connect
from rollq.snapshot.fleet import read_fleet
from rollq.snapshot.late import late_groups
from rollq.snapshot.rollouts import RolloutReader
from rollq_view.redis_place import RedisPlace
from tests.deploy.redis_users import ServerWithUsers, reads_are_apart, users
from tests.e2e.stack import Stack
from tests.ledger_of import ledger_of
from tests.rollq.samples import group, play, reader
from tests.waiting import until

USERS = ("worker", "producer", "trainer", "reader", "flower", "admin")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerWithUsers]:
    found = ServerWithUsers(tmp_path_factory.mktemp("users"), ["--lua-time-limit", "100"])
    yield found
    found.kill()


@pytest.fixture
def worker(server: ServerWithUsers) -> Iterator["redis.Redis"]:
    found = connect(server.url_of("worker"))
    yield found
    found.close()


def test_the_file_holds_no_password(server: ServerWithUsers) -> None:
    rules = users(server.made).stdout
    assert not any(password in rules for password in server.made.values())
    assert len(set(server.made.values())) == len(server.made) == 7


@pytest.mark.parametrize("password", [None, "", "short"])
def test_there_is_no_default_password(server: ServerWithUsers, password: str | None) -> None:
    made = {name: value for name, value in server.made.items() if name != "ROLLQ_TRAINER_PASSWORD"}
    ended = users(made if password is None else {**made, "ROLLQ_TRAINER_PASSWORD": password})
    assert ended.returncode != 0
    assert "ROLLQ_TRAINER_PASSWORD must have at least 16 characters" in ended.stderr


def test_nobody_comes_in_without_a_password(server: ServerWithUsers) -> None:
    for user in ("", "worker:wrong@", "default:@", "default:wrong@"):
        url = f"redis://{user}127.0.0.1:{server.port}/0"
        with redis.Redis.from_url(url) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


REFUSED = re.compile(r"(?i)permission|can't (access|run)")
FORBIDDEN: list[list[Any]] = [
    ["FLUSHALL"],
    ["FLUSHDB"],
    ["CONFIG", "GET", "*"],
    ["CONFIG", "SET", "maxmemory", 1],
    ["KEYS", "*"],
    ["ACL", "LIST"],
    ["SHUTDOWN"],
    ["MONITOR"],
    ["REPLICAOF", "NO", "ONE"],
    ["GET", "another-program"],
    ["SET", "another-program", 1],
    ["EVAL", "return redis.call('KEYS', '*')", 0],
    ["EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "another-program"],
    ["SUBSCRIBE", "another-program"],
]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("command", FORBIDDEN, ids=lambda command: " ".join(map(str, command[:2])))
def test_what_no_user_may(server: ServerWithUsers, user: str, command: list[Any]) -> None:
    with (
        redis.Redis.from_url(server.url_of(user)) as client,
        pytest.raises(redis.ResponseError) as caught,
    ):
        client.execute_command(*command)
    assert REFUSED.search(str(caught.value)), caught.value


def submitted(server: ServerWithUsers, run: str, groups: int = 1) -> None:
    """Groups g0, g1, ... of two jobs."""
    with Client(server.url_of("producer"), run=run) as producer:
        for number in range(groups):
            producer.submit(group(f"g{number}", run=run))
        broker = Broker(server.url_of("producer"))
        assert broker.send([JobMessage(f"{run}/g0/0", "rollq", 6)]), broker.error
        broker.close()
        producer.seal()
        assert producer.stats()["submitted"] == 2 * groups


def test_a_trainer_takes_rejects_and_acknowledges(
    server: ServerWithUsers, worker: "redis.Redis"
) -> None:
    submitted(server, "taken", groups=2)
    ledger = Ledger(worker, "taken")
    for name in ("g0", "g1"):
        for sample in range(2):
            play(ledger, f"taken/{name}/{sample}")
    worker.lset(ledger.keys.journal("taken/g0/0"), 1, "junk")
    with Client(server.url_of("trainer"), run="taken") as trainer:
        assert live_workers(ledger_of(trainer).redis) == []
        for batch in trainer.batches(1):
            batch.ack()
        stats = trainer.stats()
    assert (stats["delivered"], stats["dead"], stats["groups_dropped"]) == (2, 1, 1)


def test_a_trainer_has_nothing_to_do_with_the_broker(server: ServerWithUsers) -> None:
    broker = Broker(server.url_of("trainer"))
    assert broker.send([JobMessage("r/g/0", "rollq", 6)]) == []
    assert broker.error
    broker.close()
    with redis.Redis.from_url(server.url_of("trainer")) as trainer:
        for command in (["LPUSH", "rollq", "x"], ["PUBLISH", "/0.celeryev/task.x", "x"]):
            with pytest.raises(NoPermissionError):
                trainer.execute_command(*command)


def test_a_trainer_cannot_submit(server: ServerWithUsers, worker: "redis.Redis") -> None:
    if not reads_are_apart():
        pytest.skip("Redis 6.2 has no keys that may only be read: there, a trainer can submit")
    submitted(server, "refused")
    DeadLetters(worker, "refused").cancel("refused/g0/1")
    before = reader(Ledger(worker, "refused")).stats()
    with connect(server.url_of("trainer")) as trainer:
        for run in ("refused", "new"):
            with pytest.raises(LedgerError, match=REFUSED):
                Ledger(trainer, run).submit(group("h", run=run))
        letters = DeadLetters(trainer, "refused")
        for call in (
            lambda: letters.cancel("refused/g0/0"),
            lambda: letters.requeue("refused/g0/1"),
        ):
            with pytest.raises(LedgerError, match=REFUSED):
                call()
    assert reader(Ledger(worker, "refused")).stats() == before


def test_a_producer_takes_no_messages(server: ServerWithUsers, worker: "redis.Redis") -> None:
    submitted(server, "sent")
    if not reads_are_apart():
        pytest.skip(
            "Redis 6.2 has no keys that may only be written: there, a producer can take messages"
        )
    with redis.Redis.from_url(server.url_of("producer")) as producer:
        for command in (
            ["RPOP", "rollq"],
            ["LRANGE", "rollq\x06\x166", 0, -1],
            ["BRPOP", "rollq", 1],
        ):
            with pytest.raises(NoPermissionError):
                producer.execute_command(*command)
    broker = Broker(server.url_of("worker"))
    assert broker.backlog(["rollq"]), broker.error
    broker.close()


def test_flower_reads_no_ledger(server: ServerWithUsers, worker: "redis.Redis") -> None:
    submitted(server, "seen")
    with redis.Redis.from_url(server.url_of("flower")) as flower:
        flower.llen("rollq")
        flower.llen("rollq\x06\x163")
        flower.pubsub().psubscribe("/0.celeryev/*")
        for command in (["HGETALL", "rollq:{seen}:run"], ["SMEMBERS", "rollq:runs"]):
            with pytest.raises(redis.ResponseError, match=REFUSED):
                flower.execute_command(*command)


def test_a_reader_sees_everything_and_writes_nothing(
    server: ServerWithUsers, worker: "redis.Redis"
) -> None:
    submitted(server, "read")
    with connect(server.url_of("reader")) as client:
        ledger = Ledger(client, "read")
        assert reader(ledger).stats()["submitted"] == 2
        place = RedisPlace(client, "redis://here")
        assert [run["queued"] for run in place.runs() if run["run"] == "read"] == [2]
        listing = place.listing("read")
        assert (len(listing.rows), listing.facts["states"], listing.facts["trouble"]) == (
            2,
            {"queued": 2},
            "",
        )
        assert place.rollout("read", "read/g0/0", None)["state"] == "queued"
        run = RolloutReader(client, "read")
        assert [len(each.jobs) for each in late_groups(run, run.fleet(), 5)] == [2]
        assert reader(ledger).trajectory("read/g0/0").job.task == 1
        assert RunMetrics(client).read()[0].value == 1
        assert [run.counts["queued"] for run in read_fleet(client, "read").runs] == [2]
        letters = DeadLetters(client, "read")
        for call in (
            ledger.reap,
            letters.forget_run,
            lambda: letters.cancel("read/g0/0"),
            ledger.seal,
        ):
            with pytest.raises((LedgerError, NoPermissionError), match=REFUSED):
                call()
        for command in (
            ["HSET", ledger.keys.meta, "x", 1],
            ["DEL", "rollq:runs"],
            ["LPUSH", "rollq", "x"],
        ):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)
    assert reader(Ledger(worker, "read")).stats()["queued"] == 2


def test_an_administrator_ends_a_script_that_loops(
    server: ServerWithUsers, worker: "redis.Redis"
) -> None:
    def loop() -> None:
        with (
            redis.Redis.from_url(server.url_of("trainer")) as trainer,
            suppress(redis.ResponseError),
        ):
            trainer.eval("while true do end", 0)

    looping = Thread(target=loop)
    looping.start()
    with (
        redis.Redis.from_url(server.url_of("worker")) as other,
        redis.Redis.from_url(server.url_of("admin")) as admin,
    ):
        until(lambda: _busy(other))
        with pytest.raises(NoPermissionError):
            other.script_kill()
        admin.script_kill()
        looping.join(30)
        assert not _busy(other)
        assert admin.client_list() and admin.slowlog_len() is not None


def _busy(client: "redis.Redis") -> bool:
    try:
        return not client.ping()
    except redis.ResponseError as e:
        return "BUSY" in str(e)


@pytest.mark.timeout(900)
def test_each_part_as_its_own_user(
    server: ServerWithUsers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker plays what a producer submits and a trainer pulls; nothing is refused, and no
    password is logged.
    """
    stack = Stack(tmp_path, server.url_of("worker"))
    try:
        stack.engine()
        worker = stack.worker(2)
        for user, command in (
            ("producer", "submit --run w --env shop --tasks 0-1 --size 2 --seal"),
            ("trainer", "pull --run w --groups 2 --timeout 300"),
            ("trainer", "stats --run w"),
            ("producer", "jobs drop w --whole-run --yes"),
        ):
            line = [*command.split(), "--redis", server.url_of(user)]
            assert cli.main(line) == 0, stack.logs()
            said = capsys.readouterr().err
            assert "NOPERM" not in said and "ermission" not in said
        worker.terminate()
        until(lambda: worker.poll() == 0)
        said = worker.log.read_text()  # type: ignore[attr-defined]
        assert "NOPERM" not in said and "ermission" not in said, said
        assert not any(password in said for password in server.made.values())
    finally:
        stack.close()


@pytest.mark.parametrize("user", ["trainer", "worker"])
def test_metrics_are_read_with_the_rights_of(
    server: ServerWithUsers, user: str, worker: "redis.Redis"
) -> None:
    Ledger(worker, "shown").submit(group(run="shown"))
    reader = connect(server.url_of(user))
    found = {
        sample.metric.name: sample.value
        for sample in RunMetrics(reader).read()
        if "shown" in sample.labels
    }
    assert found["rollq_jobs_queued"] == 2
    reader.close()

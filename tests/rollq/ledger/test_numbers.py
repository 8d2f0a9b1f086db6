"""Numbers that no script would have written, in every field that a script reads as one.

None of them may stop Redis or a script half-way: the run comes to its end, every job counts once, and a second run does
not notice. Redis runs here with a limit on scripts, so that one which loops for ever fails a test and not the suite.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest
import redis

from rollq.errors import ContractError, FailureClass, LedgerError
from rollq.job import LARGEST_GROUP, Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import Keys
from rollq.ledger.ledger import Ledger, Refusal
from rollq.ledger.scripts import sources
from tests.conftest import free_port, redis_binary, started_redis
from tests.rollq.ledger.test_garbage import NAMES, SIZE, World, ends_well, quick, world
from tests.rollq.samples import claim, group, job, play, reap

__all__ = ["quick", "world"]

VALUES = ["nan", "inf", "-1", "1.5", "1e400", "99999999999", "99999999999999999999", "0x10", "", "x"]
GROUP = ["seq", "size", "viable", "done", "dead", "handed", "discarded"]
JOB = ["attempt", "not_before", "deadline_s", "deadline", "fail:worker", "fail:env", "fail:job", "reach", "turned"]
JOB += ["kept", "set_aside", "restart", "ended"]
JOBS = {"queued": "r/open/2", "leased": "r/open/0", "done": "r/held/0", "dead": "r/dropped/0"}
RUN = ["seq", "mended", "budget:worker", "budget:env", "heard:train"]


def some(places: Sequence[str], fields: Sequence[str], each: int) -> list[tuple[str, str, str]]:
    """`each` of the values in every field of every place: each value comes in each field, somewhere."""
    values = cycle(VALUES)
    return [(place, field, next(values)) for field in fields for place in places for _ in range(each)]


class Guarded:
    """A Redis whose clients wait for a second or two, started anew when a script has frozen it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.command = [redis_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self.command += ["--save", "", "--appendonly", "no", "--lua-time-limit", "500"]
        self.process = started_redis(self.command, self.port)

    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.port, socket_timeout=20.0)

    def thaw(self) -> None:
        try:
            with self.client() as client:
                client.ping()
        except redis.RedisError:
            self.stop()
            self.process = started_redis(self.command, self.port)
            pytest.fail("Redis was frozen by a script")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(60)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = Guarded(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def ledger(guarded: Guarded) -> Iterator[Ledger]:
    client = guarded.client()
    client.flushall()
    yield Ledger(client, "r")
    client.close()
    guarded.thaw()


@pytest.fixture(autouse=True)
def no_script_stumbles(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "user_script" not in caplog.text and "Traceback" not in caplog.text, caplog.text


def use(world: World) -> None:
    """What others do before a reaper comes by."""
    ledger = world.ledger
    letters = DeadLetters(ledger.redis, "r")
    calls: list[Callable[[], object]] = [
        ledger.stats,
        ledger.balance,
        lambda: [ledger.job(job_id) for job_id in JOBS.values()],
        lambda: ledger.renew([("r/open/0", 1)]),
        lambda: ledger.extend("theirs"),
        lambda: ledger.take(1, "theirs"),
        lambda: ledger.bounce("r/open/2"),
        lambda: ledger.confirm(["r/open/2"]),
        lambda: ledger.fail("r/dropped/0", 2, FailureClass.ENV, "again"),
        lambda: ledger.submit(group("open", SIZE, min_viable=2), source="s"),
        lambda: letters.discard("r/dropped/2"),
    ]
    for call in calls:
        world.does(call)


def check(world: World) -> None:
    use(world)
    stats = ends_well(world)
    assert not any("user_script" in said or "are damaged" in said for said in world.said), world.said
    assert set(stats["failures"]) <= {"env", "job", "worker"}


@pytest.mark.parametrize(("name", "field", "value"), some(NAMES, GROUP, 3))
def test_of_a_group(world: World, name: str, field: str, value: str) -> None:
    world.ledger.redis.hset(world.ledger.keys.group(name), field, value)
    check(world)
    assert world.ledger.stats()["groups_dropped"] <= 2


@pytest.mark.parametrize(("state", "field", "value"), some(["queued", "leased", "done"], JOB, 4))
def test_of_a_job(world: World, state: str, field: str, value: str) -> None:
    world.ledger.redis.hset(world.ledger.keys.job(JOBS[state]), field, value)
    check(world)
    stats = world.ledger.stats()
    assert stats["dead"] <= 3
    if field == "attempt" and state in ("queued", "leased"):
        (letter,) = [letter for letter in world.ledger.dead() if letter.job_id == JOBS[state]]
        assert letter.failure is FailureClass.JOB
    if state == "done" and field != "attempt":
        assert stats["dead"] == 2


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", RUN)
def test_of_the_run(world: World, field: str, value: str) -> None:
    ledger = world.ledger
    ledger.redis.hdel(ledger.keys.meta, "sealed")
    ledger.redis.hset(ledger.keys.meta, field, value)
    if field == "seq":
        with pytest.raises(LedgerError, match=r"run r: submit: rollq:\{r\}:run has no sequence"):
            ledger.submit(group("late"))
        assert not ledger.balance().sound
        assert ledger.mend() == 1
    world.reaper.tick()
    ledger.submit(group("late", 1))
    assert int(ledger.redis.hget(ledger.keys.group("late"), "seq")) == len(NAMES) + 1
    play(ledger, "r/late/0")
    world.does(lambda: ledger.take(1, "theirs"))
    world.to_the_end()
    stats = ledger.stats()
    assert (stats["done"], stats["dead"], stats["dropped"], stats["delivered"]) == (14, 2, 1, 13)
    assert not any("user_script" in said for said in world.said), world.said


@pytest.mark.parametrize("value", VALUES)
def test_of_a_tally(world: World, value: str) -> None:
    ledger = world.ledger
    ledger.redis.hset(ledger.keys.group("ready"), "tally:0", f"stop:done 1 reward_sum {value} turns {value}")
    ledger.redis.delete(ledger.keys.count)
    world.to_the_end()
    stats = ledger.stats()
    assert (stats["done"], stats["dead"], stats["submitted"]) == (13, 2, 15)
    assert abs(stats["turns"]) < 1e12 and abs(stats["reward_mean"]) < 1e12


class TestSize:
    """A whole number within bounds that is another than the group's."""

    @pytest.mark.parametrize("size", [1, 2, 4, 40, LARGEST_GROUP])
    @pytest.mark.parametrize("name", ["dropped", "held", "ready", "open"])
    def test_the_members_know_better(self, world: World, name: str, size: int) -> None:
        ledger = world.ledger
        ledger.redis.hset(ledger.keys.group(name), "size", size)
        check(world)
        stats = ledger.stats()
        assert (stats["done"], stats["dead"], stats["delivered"]) == (13, 2, 12)  # as if nothing had been

    def test_it_is_put_right(self, world: World) -> None:
        ledger = world.ledger
        ledger.redis.hset(ledger.keys.group("ready"), "size", 77)
        assert ledger.mend() == 1
        assert ledger.redis.hget(ledger.keys.group("ready"), "size") == b"3"

    @pytest.mark.parametrize("size", [1, 2])
    def test_one_that_was_acknowledged_is_counted_again(self, world: World, size: int) -> None:
        world.ledger.redis.hset(world.ledger.keys.group("acked"), "size", size)
        world.ledger.redis.delete(world.ledger.keys.count)
        check(world)
        assert world.ledger.stats()["delivered"] == 12

    def test_a_lost_member_says_nothing_of_the_size(self, world: World) -> None:
        world.ledger.redis.delete(world.ledger.keys.job("r/ready/2"))
        check(world)
        assert (world.ledger.stats()["dead"], world.ledger.stats()["groups_dropped"]) == (3, 1)

    def test_the_largest(self, ledger: Ledger) -> None:
        assert f"local LARGEST = {LARGEST_GROUP}\n" in sources()["take"]
        with pytest.raises(ContractError, match="at most 10000 samples"):
            ledger.submit([job(0, size=LARGEST_GROUP + 1)])


def test_a_huge_group_stops_redis_for_nobody(ledger: Ledger) -> None:
    """What the size says is looked at before anything is walked."""
    for name in ("g", "h"):
        ledger.submit(group(name))
        for sample in range(2):
            play(ledger, f"r/{name}/{sample}")
    for value in ("99999999999", "inf", "1e15"):
        ledger.redis.hset(ledger.keys.group("g"), "size", value)
    ledger.take(1, "t")
    assert [found.id for found in ledger.take(1, "t")] == ["h"]
    assert ledger.mend() == 0
    assert ledger.stats()["dropped"] == 2


@pytest.mark.parametrize("value", VALUES)
def test_a_leased_job_whose_attempt_is_none_dies_with_its_lease(ledger: Ledger, value: str) -> None:
    ledger.submit(group(min_viable=1))
    claim(ledger, "r/g/0")
    ledger.redis.hset(ledger.keys.job("r/g/0"), "attempt", value)
    ledger.redis.zadd(ledger.keys.leased, {"r/g/0#1": 1})
    assert reap(ledger) == []
    (letter,) = ledger.dead()
    assert (letter.job_id, letter.failure) == ("r/g/0", FailureClass.JOB)
    assert ledger.redis.zcard(ledger.keys.leased) == 0
    assert ledger.balance().sound and ledger.mend() == 0
    DeadLetters(ledger.redis, "r").requeue("r/g/0")
    play(ledger, "r/g/0")


@pytest.mark.parametrize("value", [value for value in VALUES if value])
@pytest.mark.parametrize("failure", ["engine", "user", "worker", "env", "job"])
def test_failures_that_cannot_be_counted_are_enough(ledger: Ledger, failure: str, value: str) -> None:
    ledger.submit(group())
    claim(ledger, "r/g/0")
    ledger.redis.hset(ledger.keys.job("r/g/0"), f"fail:{failure}", value)
    for _ in range(2):
        assert ledger.fail("r/g/0", 1, FailureClass(failure), "why").status == "dead"
    assert ledger.dead()[0].failure == failure
    state = ledger.job("r/g/0")
    assert state is not None and state.failures[FailureClass(failure)] in (2, 5)


@pytest.mark.parametrize("value", ["nan", "inf", "1e20"])
def test_a_claim_in_a_damaged_group_leases_nothing(ledger: Ledger, value: str) -> None:
    ledger.submit(group())
    ledger.redis.hset(ledger.keys.group("g"), "seq", value)
    assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("dead")
    assert ledger.redis.zcard(ledger.keys.leased) == 0
    assert {letter.job_id for letter in ledger.dead()} == {"r/g/0", "r/g/1"}
    assert ledger.balance().sound


def test_a_job_ended_for_damage_is_not_released_again(ledger: Ledger) -> None:
    """Its worker may still hold a lease under the number that was lost."""
    ledger.submit(group(min_viable=1))
    claim(ledger, "r/g/0")
    ledger.redis.hset(ledger.keys.job("r/g/0"), "attempt", "nan")
    ledger.redis.hset(ledger.keys.group("g"), "seq", "nan")
    assert ledger.claim("r/g/1", worker="w", token="t") == Refusal("dead")
    with pytest.raises(LedgerError, match="r/g/0"):
        ledger.release("r/g/0", 1)
    assert {letter.job_id for letter in ledger.dead()} == {"r/g/0", "r/g/1"}
    assert ledger.balance().sound


@pytest.mark.parametrize("damage", ["seq", "purpose", "all"])
def test_a_damaged_group_keeps_its_purpose(ledger: Ledger, damage: str) -> None:
    ledger.submit(group("e", purpose=Purpose.EVAL))
    for sample in range(2):
        play(ledger, f"r/e/{sample}")
    ledger.take(1, "t", purpose=Purpose.EVAL)
    ledger.ack("t", ["r/e/0", "r/e/1"])
    if damage == "all":
        ledger.redis.set(ledger.keys.group("e"), "garbage")
    else:
        ledger.redis.hset(ledger.keys.group("e"), damage, "nan")
    ledger.redis.delete(ledger.keys.count)
    ledger.mend()
    state, stats = ledger.job("r/e/0"), ledger.stats()
    assert state is not None and state.group_state == "acked"
    assert (stats["groups_acked"], stats["delivered"], stats["dropped"]) == (1, 2, 0)
    if damage == "seq":
        assert state.purpose is Purpose.EVAL
        ledger.ack("t", ["r/e/0", "r/e/1"])  # said again
    assert (
        ledger.redis.hget(ledger.keys.group("e"), "purpose") == {"seq": b"eval", "purpose": b"nan", "all": b""}[damage]
    )


def test_a_member_is_found_though_the_first_is_lost(ledger: Ledger) -> None:
    ledger.submit(group(size=3), publish_in_s=0)
    ledger.redis.delete(Keys("r").group("g"), Keys("r").job("r/g/0"))
    reap(ledger)
    assert {letter.job_id for letter in ledger.dead()} == {"r/g/0", "r/g/1", "r/g/2"}
    assert (ledger.stats()["submitted"], ledger.stats()["queued"]) == (3, 0)
    ledger.mend()
    assert ledger.balance().sound


def test_mend_is_tried_no_more_often_whatever_comes_of_it(ledger: Ledger) -> None:
    """The mark comes before the walk."""
    text = sources()["mend"]
    assert text.index("'mended', time") < text.index("'SCAN'")
    ledger.submit(group())
    assert ledger.mend() == 0
    assert ledger.mend() == -1
    ledger.redis.hset(ledger.keys.meta, "mended", "nan")
    assert ledger.mend() == 0
    other = Ledger(ledger.redis, "forgotten")
    assert other.mend() == 0
    assert not list(ledger.redis.scan_iter("*forgotten*"))


def test_an_error_in_a_script_is_said_in_words(ledger: Ledger) -> None:
    ledger._scripts["bounce"] = ledger.redis.register_script("return redis.call('HINCRBY', KEYS[1], 'a', 'x')")
    with pytest.raises(LedgerError, match=r"run r: bounce of job r/g/0: .*records.*damaged.*workers mend") as caught:
        ledger.bounce("r/g/0")
    assert caught.value.__cause__ is not None

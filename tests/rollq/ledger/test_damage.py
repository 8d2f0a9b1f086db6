"""Records that cannot be read: a typed error that names the key, a cost to their own job or group,
and nothing else.
"""

import re
from collections.abc import Iterator

import pytest
import redis

from rollq.errors import ContractError, FailureClass, Fenced, LedgerError
from rollq.job import LARGEST_GROUP
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.keys import RUNS
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import runs
from rollq.ledger.replies import Claim, Refusal
from rollq.wire.events import encode_event
from tests.conftest import free_port, redis_binary, started_redis
from tests.rollq.groups import ack, deliveries, finish_groups, take
from tests.rollq.samples import claim, closed, group, is_over, job, play, reader, reap


def test_lost_totals_stop_no_job(ledger: Ledger) -> None:
    ledger.submit(group())
    ledger.redis.delete(ledger.keys.count)
    ledger.redis.set(ledger.keys.count, "garbage")
    play(ledger, "r/g/0")
    play(ledger, "r/g/1")
    (taken,) = take(ledger, 1, "t")
    ack(ledger, "t", taken.id)
    with pytest.raises(LedgerError, match=r"run r: snapshot: rollq:\{r\}:count is a string"):
        reader(ledger).stats()
    for total in ("many", "nan", "inf"):
        ledger.redis.delete(ledger.keys.count)
        ledger.redis.hset(ledger.keys.count, mapping={"done": total})
        with pytest.raises(
            LedgerError, match=r"rollq:\{r\}:count cannot be read: .*(many|done).*Delete the key"
        ):
            reader(ledger).stats()


def test_the_list_of_runs(ledger: Ledger) -> None:
    ledger.redis.zadd(RUNS, {"not a run": 1, b"\xff": 2, "good": 3})
    assert runs(ledger.redis) == ["good"]
    ledger.redis.set(RUNS, "garbage")
    with pytest.raises(LedgerError, match=f"{RUNS}.*Delete that key"):
        runs(ledger.redis)
    with pytest.raises(
        LedgerError, match=f"{RUNS}: .*WRONGTYPE .*docs/ledger.md says which keys may be deleted"
    ):
        ledger.submit(group())
    ledger.redis.delete(RUNS)
    assert ledger.submit(group()).new
    assert runs(ledger.redis) == ["r"]


def damage_job(ledger: Ledger, job_id: str, damage: str) -> str:
    """Returns the key."""
    key = ledger.keys.job(job_id)
    match damage:
        case "string":
            ledger.redis.set(key, "garbage")
        case "fields":
            ledger.redis.hset(key, mapping=dict.fromkeys(ledger.redis.hkeys(key), b"\xff garbage"))
        case "no state" | "no attempt":
            ledger.redis.hdel(key, damage.removeprefix("no "))
        case "deleted":
            ledger.redis.delete(key)
        case number:
            ledger.redis.hset(key, "attempt", number)
    return key


JOB_DAMAGE = [
    "string",
    "fields",
    "no state",
    "no attempt",
    "deleted",
    "nan",
    "-1",
    "1.5",
    "1e400",
    "99999999999",
]


class TestJob:
    """Of a group that goes on without it."""

    def dies_alone(self, ledger: Ledger, key: str) -> None:
        (letter,) = reader(ledger).dead()
        assert (letter.job_id, letter.failure) == ("r/g/0", FailureClass.JOB)
        assert key in letter.reason
        play(ledger, "r/g/1")
        (taken,) = take(ledger, 1, "t")
        assert (taken.members, taken.dead) == (["r/g/1"], ["r/g/0"])
        stats = reader(ledger).stats()
        assert (
            stats["submitted"],
            stats["done"],
            stats["dead"],
            stats["queued"],
            stats["leased"],
        ) == (2, 1, 1, 0, 0)

    @pytest.mark.parametrize("damage", JOB_DAMAGE)
    def test_it_dies_when_it_is_due(self, ledger: Ledger, damage: str) -> None:
        ledger.submit(group(min_viable=1), send_in_s=0)
        key = damage_job(ledger, "r/g/0", damage)
        assert reap(ledger) == ["r/g/1"]
        self.dies_alone(ledger, key)

    @pytest.mark.parametrize("damage", [*JOB_DAMAGE, "deadline_s"])
    def test_it_dies_when_its_message_arrives(self, ledger: Ledger, damage: str) -> None:
        ledger.submit(group(min_viable=1))
        if damage == "deadline_s":
            ledger.redis.hset(key := ledger.keys.job("r/g/0"), "deadline_s", "nan")
        else:
            key = damage_job(ledger, "r/g/0", damage)
        for _ in range(2):
            assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("dead")
        self.dies_alone(ledger, key)

    @pytest.mark.parametrize("damage", JOB_DAMAGE)
    def test_it_dies_when_its_lease_ends(self, ledger: Ledger, damage: str) -> None:
        ledger.submit(group(min_viable=1))
        ledger.submit(group("h", min_viable=1))
        claim(ledger, "r/g/0")
        claim(ledger, "r/h/0")
        key = damage_job(ledger, "r/g/0", damage)
        ledger.redis.zadd(
            ledger.keys.leased,
            {"r/g/0#1#token": 1, "r/h/0#1#token": 2, "garbage": 1, "r/h/x#1#token": 1},
        )
        assert reap(ledger) == ["r/h/0"]  # the reap goes on with the others
        assert ledger.redis.zcard(ledger.keys.leased) == 0
        DeadLetters(ledger.redis, "r").cancel("r/h/0")
        DeadLetters(ledger.redis, "r").discard("r/h/0")
        play(ledger, "r/h/1")
        ack(ledger, "u", *(taken.id for taken in take(ledger, 1, "u")))
        (letter,) = reader(ledger).dead()
        assert (letter.job_id, letter.failure) == ("r/g/0", FailureClass.JOB)
        assert key in letter.reason

    def test_a_worker_that_still_plays_it_is_refused(self, ledger: Ledger) -> None:
        ledger.submit(group(min_viable=1))
        claim(ledger, "r/g/0")
        key = damage_job(ledger, "r/g/0", "string")
        with pytest.raises(
            LedgerError, match=f"run r: append of job r/g/0: {key} is a string where a hash belongs"
        ):
            ledger.append("r/g/0", "1#token", 0, [b"x"])
        assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("dead")
        for write in (
            lambda: ledger.append("r/g/0", "1#token", 0, [b"x"]),
            lambda: ledger.complete("r/g/0", "1#token", 0, [encode_event(closed(), "r/g/0")]),
            lambda: ledger.fail("r/g/0", "1#token", FailureClass.ENV, "x"),
            lambda: ledger.release("r/g/0", "1#token"),
        ):
            with pytest.raises(Fenced):
                write()

    @pytest.mark.parametrize("end", ["claim", "expiry", "cancel"])
    def test_a_worker_that_still_plays_it_is_refused_after_a_requeue(
        self, ledger: Ledger, end: str
    ) -> None:
        ledger.submit(group(min_viable=1))
        claim(ledger, "r/g/0")
        ledger.redis.hset(ledger.keys.job("r/g/0"), "attempt", "nan")
        match end:
            case "claim":
                assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("dead")
            case "expiry":
                ledger.redis.zadd(ledger.keys.leased, {"r/g/0#1#token": 1})
                assert reap(ledger) == []
            case "cancel":
                DeadLetters(ledger.redis, "r").cancel("r/g/0")
        assert ledger.redis.zcard(ledger.keys.leased) == 0
        DeadLetters(ledger.redis, "r").requeue("r/g/0")
        assert claim(ledger, "r/g/0", "another").attempt == 2
        with pytest.raises(Fenced):
            ledger.append("r/g/0", "1#token", 0, [b"x"])

    def test_junk_among_the_queued_is_swept_out(self, ledger: Ledger) -> None:
        ledger.submit(group(), send_in_s=0)
        play(ledger, "r/g/1")
        ledger.redis.zadd(
            ledger.keys.queued, {"junk": 0, "r/g/1": 0, "r/nobody/0": 0, "other/g/0": 0, "r/g/7": 0}
        )
        assert reap(ledger) == ["r/g/0"]
        assert ledger.redis.zrange(ledger.keys.queued, 0, -1) == [b"r/g/0"]
        assert reader(ledger).dead() == []

    @pytest.mark.parametrize("failure", ["engine", "env"])
    def test_failures_that_cannot_be_counted_are_enough(self, ledger: Ledger, failure: str) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.redis.hset(ledger.keys.job("r/g/0"), f"fail:{failure}", "nan")
        assert ledger.fail("r/g/0", "1#token", FailureClass(failure), "why").status == "dead"

    def test_its_record_is_named_to_people(self, ledger: Ledger) -> None:
        ledger.submit(group())
        ledger.redis.hset(ledger.keys.job("r/g/1"), "state", "bored")
        with pytest.raises(LedgerError, match=r"r/g/1.*bored.*--whole-run"):
            reader(ledger).job("r/g/1")
        ledger.redis.set(key := ledger.keys.job("r/g/0"), "garbage")
        with pytest.raises(LedgerError, match=rf"{re.escape(key)}.*WRONGTYPE.*--whole-run --yes"):
            reader(ledger).job("r/g/0")
        ledger.redis.zadd(ledger.keys.dead, {"junk": 1.0, b"\xff": 1.0})
        assert {letter.failure for letter in reader(ledger).dead()} == {FailureClass.JOB}


class TestJournal:
    def test_one_of_another_type_is_set_aside_by_the_next_attempt(self, ledger: Ledger) -> None:
        ledger.submit(group())
        claim(ledger, "r/g/0")
        ledger.redis.set(ledger.keys.journal("r/g/0"), "garbage")
        for refused in (
            lambda: ledger.append("r/g/0", "1#token", 0, [b"x"]),
            lambda: ledger.journal("r/g/0"),
        ):
            with pytest.raises(LedgerError, match="journal:r/g/0"):
                refused()
        ledger.release("r/g/0", "1#token")
        play(ledger, "r/g/0")
        assert reader(ledger).trajectory("r/g/0").reward == 1.0

    def test_junk_in_a_finished_one_costs_its_own_job(self, ledger: Ledger) -> None:
        finish_groups(ledger, "g", "h", min_viable=1)
        ledger.redis.lset(ledger.keys.journal("r/g/0"), 2, b"\xff junk")
        ledger.redis.set(ledger.keys.journal("r/g/1"), "garbage")
        with pytest.raises(ContractError, match="r/g/0"):
            reader(ledger).trajectory("r/g/0")
        found = reader(ledger).read(["r/g/0", "r/g/1", "r/h/0"])
        assert [isinstance(one, ContractError) for one in found] == [True, True, False]
        assert "r/g/0" in str(found[0]) and "r/g/1" in str(found[1])
        for token in ("t", "u"):
            take(ledger, 2 if token == "t" else 1, token)
            deliveries(ledger).reject(token, f"r/g/{'tu'.index(token)}", "torn")
        assert [taken.id for taken in take(ledger, 1, "v")] == ["h"]


GROUP_DAMAGE = ["string", "deleted", "fields"]
NUMBERS = ["nan", "inf", "-1", "1.5", "1e400", "99999999999", "0x10", "", "x"]
FIELDS = ["seq", "size", "viable", "done", "dead", "handed", "purpose", "state"]


def damage_group(ledger: Ledger, name: str, damage: str) -> None:
    key = ledger.keys.group(name)
    if damage in ("string", "deleted"):
        ledger.redis.delete(key)
    if damage == "string":
        ledger.redis.set(key, "garbage")
    elif damage == "fields":
        ledger.redis.hset(key, mapping=dict.fromkeys(ledger.redis.hkeys(key), b"\xff garbage"))
    elif damage != "deleted":
        field, value = damage.split(" ")
        ledger.redis.hset(key, field, value)


class TestGroup:
    @pytest.mark.parametrize("damage", GROUP_DAMAGE)
    def test_a_ready_one_is_dropped_and_holds_up_no_other(
        self, ledger: Ledger, damage: str
    ) -> None:
        finish_groups(ledger, "g", "h")
        damage_group(ledger, "g", damage)
        assert take(ledger, 1, "t") == []  # found out here
        assert [taken.id for taken in take(ledger, 1, "t")] == ["h"]
        ack(ledger, "t", "h")
        ledger.seal()
        assert is_over(ledger)
        stats = reader(ledger).stats()
        assert (stats["groups_dropped"], stats["dropped"], stats["delivered"], stats["done"]) == (
            1,
            2,
            2,
            4,
        )
        assert reader(ledger).group_states(["g"]) == ["dropped"]

    @pytest.mark.parametrize("damage", GROUP_DAMAGE)
    def test_the_members_of_an_open_one_end(self, ledger: Ledger, damage: str) -> None:
        ledger.submit(group(size=3))
        claim(ledger, "r/g/0")
        play(ledger, "r/g/2")
        damage_group(ledger, "g", damage)
        with pytest.raises(LedgerError, match="group:g"):
            ledger.fail("r/g/0", "1#token", FailureClass.ENV, "x")
        assert ledger.claim("r/g/1", worker="w", token="t") == Refusal("dead")
        with pytest.raises(Fenced):
            ledger.append("r/g/0", "1#token", 0, [b"x"])
        assert {letter.job_id for letter in reader(ledger).dead()} == {"r/g/0", "r/g/1"}
        assert all("group:g" in letter.reason for letter in reader(ledger).dead())
        ledger.seal()
        assert is_over(ledger)
        stats = reader(ledger).stats()
        assert (stats["submitted"], stats["done"], stats["dead"], stats["dropped"]) == (3, 1, 2, 1)

    def test_a_dead_member_brings_it_back(self, ledger: Ledger) -> None:
        ledger.submit(group())
        play(ledger, "r/g/1")
        damage_group(ledger, "g", "seq nan")
        assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("dead")
        DeadLetters(ledger.redis, "r").requeue("r/g/0")
        play(ledger, "r/g/0")
        assert [taken.members for taken in take(ledger, 1, "t")] == [["r/g/0", "r/g/1"]]

    def test_a_consumer_that_waits_is_woken(self, ledger: Ledger) -> None:
        finish_groups(ledger, "h")
        ledger.submit(group(), send_in_s=0)
        assert not deliveries(ledger).take(2, "c/0", wake=True).groups
        ledger.redis.hset(ledger.keys.group("g"), "size", "x")
        reap(ledger)
        assert ledger.redis.exists(f"{ledger.keys.prefix}wake:c")

    def test_one_that_is_held_goes_and_leaves_the_rest_of_the_batch(self, ledger: Ledger) -> None:
        finish_groups(ledger, "g", "h")
        take(ledger, 2, "t")
        damage_group(ledger, "g", "string")
        deliveries(ledger).renew_holds(["t"])
        assert [taken.id for taken in take(ledger, 2, "t")] == ["h"]
        ack(ledger, "t", "h")
        stats = reader(ledger).stats()
        assert (stats["groups_dropped"], stats["groups_acked"], stats["groups_held"]) == (1, 1, 0)


@pytest.fixture(scope="module")
def impatient_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis that gives up on a script after half a second, so that a loop fails one
    test.
    """
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    command = [
        redis_binary(),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--save",
        "",
    ]
    process = started_redis([*command, "--appendonly", "no", "--lua-time-limit", "500"], port)
    yield port
    process.kill()
    process.wait(60)


@pytest.mark.parametrize("field", FIELDS)
def test_no_number_of_a_group_stops_redis_or_another_group(
    impatient_redis: int, field: str
) -> None:
    """Each number is checked before a script loops over anything."""
    with redis.Redis(port=impatient_redis, socket_timeout=20.0) as client:
        for number, value in enumerate(NUMBERS):
            client.flushall()
            ledger = Ledger(client, "r")
            for name in ("g", "h"):
                ledger.submit(group(name), send_in_s=0)
            for job_id in ("r/g/0", "r/h/0", "r/h/1"):
                play(ledger, job_id)
            damage_group(ledger, "g", f"{field} {value}")
            reap(ledger)
            for attempt in range(3):
                found = ledger.claim("r/g/1", worker="w", token=f"{number}{attempt}")
                if isinstance(found, Claim):
                    ledger.release("r/g/1", found.lease)
            delivered = {taken.id for token in "tuv" for taken in take(ledger, 1, token)}
            assert delivered == {"h"}, (field, value)
            assert reader(ledger).stats()["groups_dropped"] == 1, (field, value)


def test_the_largest_group(ledger: Ledger) -> None:
    with pytest.raises(ContractError, match="at most 10000 samples"):
        ledger.submit([job(0, size=LARGEST_GROUP + 1)])


def test_a_run_without_a_readable_sequence_takes_no_groups(ledger: Ledger) -> None:
    ledger.submit(group())
    ledger.redis.hset(ledger.keys.meta, "seq", "nan")
    with pytest.raises(
        LedgerError, match=r"run r: submit of job r/late/0: rollq:\{r\}:run has no readable seq"
    ):
        ledger.submit(group("late"))


def test_an_error_in_a_script_names_the_run_and_the_job(ledger: Ledger) -> None:
    ledger.submit(group())
    claim(ledger, "r/g/0")
    with pytest.raises(LedgerError, match=r"run r: append of job r/g/0: .*number"):
        ledger.scripts.call("append", ["r/g/0", "1#token", "no number", "0", b"", b"", b"x"])

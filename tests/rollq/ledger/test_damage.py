"""Garbage under any of a run's names: a clear error or a dead job, and nothing else disturbed."""

from collections.abc import Callable

import pytest

from rollq.errors import ContractError, FailureClass, Fenced, LedgerError, RollqError
from rollq.job import Purpose
from rollq.ledger.keys import RUNS
from rollq.ledger.ledger import Ledger, Refusal
from rollq.ledger.replies import Balance
from rollq.ledger.run_index import runs
from tests.rollq.samples import claim, events, group, journal, play, reap

RUN_KEYS: list[Callable[[Ledger], str]] = [
    lambda ledger: ledger.keys.meta,
    lambda ledger: ledger.keys.queued,
    lambda ledger: ledger.keys.leased,
    lambda ledger: ledger.keys.dead,
    lambda ledger: ledger.keys.open("train"),
    lambda ledger: ledger.keys.ready("train"),
    lambda ledger: ledger.keys.held("train"),
]


def use_everything(ledger: Ledger, name: str) -> list[str]:
    """Every call once on a fresh group; returns the messages of the errors."""
    ids = [f"{ledger.run}/{name}/{sample}" for sample in range(2)]
    calls: list[Callable[[], object]] = [
        lambda: ledger.submit(group(name, run=ledger.run)),
        lambda: claim(ledger, ids[0], name),
        lambda: journal(ledger, ids[0], 1, events()[:2]),
        lambda: ledger.renew([(ids[0], 1)]),
        lambda: ledger.fail(ids[0], 1, FailureClass.CANCELLED, "x"),
        lambda: play(ledger, ids[1]),
        lambda: reap(ledger),
        lambda: ledger.confirm(ids),
        lambda: ledger.bounce(ids[0]),
        lambda: ledger.take(1, f"t{name}"),
        lambda: ledger.extend(f"t{name}"),
        lambda: ledger.ack(f"t{name}", ids),
        lambda: ledger.stats(),
        lambda: ledger.standing(),
        lambda: ledger.dead(),
        lambda: ledger.fix_hashes("a", "b"),
    ]
    said = []
    for call in calls:
        try:
            call()
        except (RollqError, AssertionError) as e:
            said.append(str(e))
    return said


@pytest.mark.parametrize("key_of", RUN_KEYS)
def test_a_key_of_the_run_that_is_a_string(ledger: Ledger, key_of: Callable[[Ledger], str]) -> None:
    ledger.submit(group())
    bad = key_of(ledger)
    ledger.redis.delete(bad)
    ledger.redis.set(bad, "garbage")
    said = use_everything(ledger, "h")
    assert any(f"{bad} is a string where a" in text and "run r" in text for text in said)
    assert ledger.redis.get(bad) == b"garbage"
    other = Ledger(ledger.redis, "other")
    other.submit(group(run="other"))
    play(other, "other/g/0")
    play(other, "other/g/1")
    assert len(other.take(1, "t")) == 1


def test_lost_totals_stop_nobody(ledger: Ledger) -> None:
    ledger.submit(group())
    ledger.redis.set(ledger.keys.count, "garbage")
    play(ledger, "r/g/0")
    play(ledger, "r/g/1")
    (taken,) = ledger.take(1, "t")
    ledger.ack("t", taken.members)
    with pytest.raises(LedgerError, match="run r: stats"):
        ledger.stats()
    ledger.redis.delete(ledger.keys.count)
    ledger.redis.hset(ledger.keys.count, mapping={"done": "many", "reward_sum": "nan"})
    assert ledger.stats()["done"] == 0


def test_the_list_of_runs(ledger: Ledger) -> None:
    ledger.redis.zadd(RUNS, {"not a run": 1, b"\xff": 2, "good": 3})
    assert runs(ledger.redis) == ["good"]
    ledger.redis.set(RUNS, "garbage")
    with pytest.raises(LedgerError, match=RUNS):
        runs(ledger.redis)
    with pytest.raises(LedgerError, match=RUNS):
        ledger.submit(group())


@pytest.mark.parametrize("damage", ["string", "no state", "deleted", "no attempt"])
def test_a_damaged_job_dies_and_leaves_its_group_to_the_others(ledger: Ledger, damage: str) -> None:
    ledger.submit(group(min_viable=1), publish_in_s=0)
    key = ledger.keys.job("r/g/0")
    match damage:
        case "string":
            ledger.redis.set(key, "garbage")
        case "no state":
            ledger.redis.hdel(key, "state")
        case "no attempt":
            ledger.redis.hset(key, "attempt", "many")
        case "deleted":
            ledger.redis.delete(key)
    assert reap(ledger) == ["r/g/1"]
    (letter,) = ledger.dead()
    assert (letter.job_id, letter.failure) == ("r/g/0", FailureClass.JOB)
    assert key in letter.reason
    play(ledger, "r/g/1")
    (taken,) = ledger.take(1, "t")
    assert (taken.members, taken.dead) == (["r/g/1"], ["r/g/0"])
    stats = ledger.stats()
    assert stats["submitted"] == stats["done"] + stats["dead"]


@pytest.mark.parametrize("damage", ["string", "fields", "no state", "no attempt", "deleted"])
def test_a_published_job_that_is_damaged_dies_when_its_message_arrives(ledger: Ledger, damage: str) -> None:
    ledger.submit(group(min_viable=1))
    ledger.confirm(["r/g/0", "r/g/1"])
    key = ledger.keys.job("r/g/0")
    match damage:
        case "string":
            ledger.redis.set(key, "garbage")
        case "fields":
            ledger.redis.hset(key, mapping=dict.fromkeys(ledger.redis.hkeys(key), b"\xff garbage"))
        case "no state" | "no attempt":
            ledger.redis.hdel(key, damage.removeprefix("no "))
        case "deleted":
            ledger.redis.delete(key)
    for _ in range(2):
        assert ledger.claim("r/g/0", worker="w", token="t") == Refusal("dead")
    (letter,) = ledger.dead()
    assert (letter.job_id, letter.failure) == ("r/g/0", FailureClass.JOB) and key in letter.reason
    play(ledger, "r/g/1")
    assert [found.dead for found in ledger.take(1, "t")] == [["r/g/0"]]
    assert ledger.balance().sound


@pytest.mark.parametrize("damage", ["string", "deleted", "failures"])
def test_a_leased_job_that_is_damaged_dies_when_its_lease_ends(ledger: Ledger, damage: str) -> None:
    ledger.submit([*group(min_viable=1)])
    ledger.submit(group("h"))
    claim(ledger, "r/g/0")
    claim(ledger, "r/h/0")
    key = ledger.keys.job("r/g/0")
    match damage:
        case "string":
            ledger.redis.set(key, "garbage")
            with pytest.raises(LedgerError, match="r/g/0"):
                ledger.append("r/g/0", 1, 0, b"x")
        case "deleted":
            ledger.redis.delete(key)
        case "failures":
            ledger.redis.hset(key, "fail:worker", "many")
    assert ledger.renew([("r/g/0", 1), ("r/h/0", 1)]) == []
    ledger.redis.zadd(ledger.keys.leased, {"r/g/0#1": 1, "r/h/0#1": 1, "garbage": 1, "r/h/x#1": 1})
    assert "r/h/0" in reap(ledger)
    assert [letter.job_id for letter in ledger.dead()] == ["r/g/0"]
    assert ledger.redis.zcard(ledger.keys.leased) == 0
    play(ledger, "r/g/1")
    assert [g.dead for g in ledger.take(1, "t")] == [["r/g/0"]]


def test_junk_among_the_queued_is_swept_out(ledger: Ledger) -> None:
    ledger.submit(group(), publish_in_s=0)
    play(ledger, "r/g/1")
    ledger.redis.zadd(ledger.keys.queued, {"junk": 0, "r/g/1": 0})
    assert reap(ledger) == ["r/g/0"]
    assert ledger.redis.zrange(ledger.keys.queued, 0, -1) == [b"r/g/0"]
    assert ledger.dead() == []


@pytest.mark.parametrize("damage", ["string", "fields"])
def test_a_damaged_group_is_dropped_and_holds_up_nothing(ledger: Ledger, damage: str) -> None:
    for name in ("g", "h"):
        ledger.submit(group(name))
        play(ledger, f"r/{name}/0")
        play(ledger, f"r/{name}/1")
    if damage == "string":
        ledger.redis.set(ledger.keys.group("g"), "garbage")
    else:
        ledger.redis.hset(ledger.keys.group("g"), "size", "many")
    assert ledger.take(1, "t") == []  # found out here
    assert [g.id for g in ledger.take(1, "t")] == ["h"]
    ledger.ack("t", ["r/h/0", "r/h/1"])
    ledger.seal()
    assert ledger.standing().over
    assert ledger.stats()["groups_dropped"] == 1
    assert ledger.redis.exists(f"{ledger.keys.prefix}damaged:group:g")


def test_the_members_of_a_damaged_group_end(ledger: Ledger) -> None:
    ledger.submit(group(size=3))
    claim(ledger, "r/g/0")
    play(ledger, "r/g/2")
    ledger.redis.set(ledger.keys.group("g"), "garbage")
    with pytest.raises(LedgerError, match="group:g"):
        ledger.fail("r/g/0", 1, FailureClass.ENV, "x")
    assert ledger.claim("r/g/1", worker="w", token="t") == Refusal("dead")
    with pytest.raises(Fenced):
        ledger.append("r/g/0", 1, 0, b"x")
    assert {letter.job_id for letter in ledger.dead()} == {"r/g/0", "r/g/1"}
    assert all("group:g is a string" in letter.reason for letter in ledger.dead())
    ledger.seal()
    assert ledger.standing().over
    stats = ledger.stats()
    assert (stats["submitted"], stats["done"], stats["dead"], stats["dropped"]) == (3, 1, 2, 1)
    assert ledger.balance() == Balance(sound=True, over=True)


def test_a_journal_that_is_none_is_set_aside_by_the_next_attempt(ledger: Ledger) -> None:
    ledger.submit(group())
    claim(ledger, "r/g/0", "a")
    ledger.redis.set(ledger.keys.journal("r/g/0"), "garbage")
    for refused in (lambda: ledger.append("r/g/0", 1, 0, b"x"), lambda: ledger.journal("r/g/0")):
        with pytest.raises(LedgerError, match="r/g/0"):
            refused()
    ledger.fail("r/g/0", 1, FailureClass.WORKER, "LedgerError")
    ledger.redis.hset(ledger.keys.job("r/g/0"), "not_before", 0)
    play(ledger, "r/g/0")
    assert ledger.trajectory("r/g/0").reward == 1.0


def test_junk_in_a_finished_journal_is_named(ledger: Ledger) -> None:
    ledger.submit(group())
    play(ledger, "r/g/0")
    ledger.redis.lset(ledger.keys.journal("r/g/0"), 2, b"\xff junk")
    with pytest.raises(ContractError, match="r/g/0"):
        ledger.trajectory("r/g/0")
    ledger.redis.hset(ledger.keys.job("r/g/1"), "state", "bored")
    with pytest.raises(LedgerError, match="r/g/1"):
        ledger.job("r/g/1")


def test_other_purposes_are_not_touched_by_a_damaged_one(ledger: Ledger) -> None:
    ledger.submit(group("e", purpose=Purpose.EVAL))
    ledger.redis.set(ledger.keys.ready("train"), "garbage")
    play(ledger, "r/e/0")
    play(ledger, "r/e/1")
    assert len(ledger.take(1, "t", purpose=Purpose.EVAL)) == 1

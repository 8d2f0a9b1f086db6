"""A lost reply makes the client send again: every script, run twice with the same arguments, is as
if run once.

The same table proves that a script touches the keys of its run alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pytest

from rollq.errors import FailureClass
from rollq.job import Purpose
from rollq.ledger import solve_rates
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.job_extras import save_extras
from rollq.ledger.keys import Keys
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import COUNTS
from rollq.ledger.replies import Cursor
from rollq.ledger.scripts import Reply, Scripts
from rollq.ledger.versions import Versions
from rollq.ledger.workers.time_spent import report_time
from rollq.trajectory_extras import Extra
from rollq.wire.events import encode_event
from tests.rollq.groups import ack, deliveries, take
from tests.rollq.ledger.test_scripts import SCRIPTS
from tests.rollq.samples import claim, closed, events, group, journal, play, reader, reap


@dataclass(frozen=True)
class Case:
    script: str
    prepare: Callable[[Ledger], object]
    act: Callable[[Ledger], object]


def two_groups(ledger: Ledger) -> None:
    for name in ("g", "h"):
        ledger.submit(group(name))


def leased(ledger: Ledger) -> None:
    two_groups(ledger)
    claim(ledger, "r/g/0")


def half_played(ledger: Ledger) -> None:
    leased(ledger)
    journal(ledger, "r/g/0", "1#token", events()[:4])


def released(ledger: Ledger) -> None:
    half_played(ledger)
    ledger.release("r/g/0", "1#token")


def expired(ledger: Ledger) -> None:
    half_played(ledger)
    ledger.redis.zadd(ledger.keys.leased, {"r/g/0#1#token": 1})


def last_expiry(ledger: Ledger) -> None:
    expired(ledger)
    ledger.redis.hset(ledger.keys.meta, mapping={"beat": ledger.scripts.now(), "grace": 0})
    ledger.redis.hset(ledger.keys.job("r/g/0"), "fail:worker", 4)


def ready(ledger: Ledger) -> None:
    two_groups(ledger)
    for job_id in ("r/g/0", "r/g/1", "r/h/0", "r/h/1"):
        play(ledger, job_id)


def held(ledger: Ledger) -> None:
    ready(ledger)
    take(ledger, 2, "t")


def held_by_name(ledger: Ledger) -> None:
    ready(ledger)
    owner = deliveries(ledger).open("n", Purpose.TRAIN, "first").owner
    take(ledger, 1, "@train:n/0", owner=owner)


def left_incomplete(ledger: Ledger) -> None:
    """A batch of two lost one group to the filter, and a third group is ready."""
    ready(ledger)
    ledger.submit(group("i", size=1))
    play(ledger, "r/i/0")
    owner = deliveries(ledger).open("n", Purpose.TRAIN, "first").owner
    take(ledger, 2, "@train:n/0", owner=owner)
    deliveries(ledger).skip("@train:n/0", "g", "equal", owner=owner, filling=True)


def over_provisioned(ledger: Ledger) -> None:
    """One member is nearly done, one is being played, one is queued; one graded member
    is enough.
    """
    ledger.submit(group(size=1, spare=2))
    claim(ledger, "r/g/1", "other")
    claim(ledger, "r/g/0")
    journal(ledger, "r/g/0", "1#token", events()[:4])


def dead(ledger: Ledger) -> None:
    half_played(ledger)
    ledger.fail("r/g/0", "1#token", FailureClass.CANCELLED, "no")


def dropped(ledger: Ledger) -> None:
    dead(ledger)
    play(ledger, "r/g/1")


def entered(ledger: Ledger) -> None:
    ledger.submit(group(), source="s", cursor=Cursor(1, 2, "ab"))


def dead_letters(ledger: Ledger) -> DeadLetters:
    return DeadLetters(ledger.redis, ledger.run)


def ran_out(ledger: Ledger) -> None:
    held(ledger)
    ledger.redis.zadd(f"{ledger.keys.prefix}held:train", {"g": 1, "h": 1})


def filter_out(ledger: Ledger, token: str, name: str) -> None:
    deliveries(ledger).skip(token, name, "equal", owner="1#first", filling=True)


def versions(ledger: Ledger) -> Versions:
    return Versions(ledger.redis, ledger.run)


def admitted(ledger: Ledger) -> None:
    versions(ledger).limit_staleness(2, 1, None)
    two_groups(ledger)


def trained(ledger: Ledger) -> None:
    """Two batches of a run with admission, and the policies after them."""
    versions(ledger).limit_staleness(1, 1, None)
    ready(ledger)
    for step, name in enumerate("gh", 1):
        take(ledger, 1, f"t{step}")
        ack(ledger, f"t{step}", name)
        versions(ledger).publish(step, str(step), f"before{step}")


END = encode_event(closed(), "r/g/0")
ALL = ["r/g/0", "r/g/1", "r/h/0", "r/h/1"]

EXTRA = Extra(dtype="int8", shape=(2,), data=b"ab")
CASES = [
    Case("submit", lambda ledger: None, lambda ledger: ledger.submit(group())),
    Case("submit", two_groups, lambda ledger: ledger.submit(group()[1:])),
    Case("claim", two_groups, lambda ledger: ledger.claim("r/g/0", worker="w", token="t")),
    Case("claim", released, lambda ledger: ledger.claim("r/g/0", worker="w", token="t")),
    Case("append", leased, lambda ledger: ledger.append("r/g/0", "1#token", 0, [b"header"])),
    Case(
        "append",
        half_played,
        lambda ledger: ledger.append("r/g/0", "1#token", 5, [encode_event(events()[2], "r/g/0")]),
    ),
    Case(
        "renew_leases",
        leased,
        lambda ledger: ledger.renew_leases([("r/g/0", "1#token"), ("r/g/1", "1#token")]),
    ),
    Case(
        "save_extras",
        half_played,
        lambda ledger: save_extras(ledger.scripts, "r/g/0", "1#token", {"a": EXTRA}),
    ),
    Case(
        "report_time", half_played, lambda ledger: report_time(ledger.scripts, "w", {"engine": 1.0})
    ),
    Case(
        "complete",
        half_played,
        lambda ledger: ledger.complete("r/g/0", "1#token", 5, [END], turns=2),
    ),
    Case(
        "complete",
        over_provisioned,
        lambda ledger: ledger.complete("r/g/0", "1#token", 5, [END], turns=2),
    ),
    Case("release", half_played, lambda ledger: ledger.release("r/g/0", "1#token", restart=True)),
    Case(
        "fail",
        half_played,
        lambda ledger: ledger.fail("r/g/0", "1#token", FailureClass.ENGINE, "down"),
    ),
    Case(
        "fail",
        half_played,
        lambda ledger: ledger.fail("r/g/0", "1#token", FailureClass.CANCELLED, "no"),
    ),
    Case("release", half_played, lambda ledger: ledger.release("r/g/0", "1#token")),
    Case("resend", two_groups, lambda ledger: ledger.resend("r/g/0")),
    Case("reap", expired, reap),
    Case("reap", last_expiry, lambda ledger: ledger.reap(100, ["rollq"])),
    Case("confirm", two_groups, lambda ledger: ledger.confirm(ALL)),
    Case("take", ready, lambda ledger: take(ledger, 2, "t")),
    Case("take", ran_out, lambda ledger: take(ledger, 2, "u")),
    Case("renew_holds", held, lambda ledger: deliveries(ledger).renew_holds(["t"])),
    Case("ack", held, lambda ledger: ack(ledger, "t", "g")),
    Case("ack", held, lambda ledger: deliveries(ledger).skip("t", "g", "too easy")),
    Case(
        "open_consumer", ready, lambda ledger: deliveries(ledger).open("n", Purpose.TRAIN, "mine")
    ),
    Case(
        "open_consumer",
        held_by_name,
        lambda ledger: deliveries(ledger).open("n", Purpose.TRAIN, "mine", step=0),
    ),
    Case("take", held_by_name, lambda ledger: take(ledger, 1, "@train:n/1", owner="1#first")),
    Case(
        "take",
        left_incomplete,
        lambda ledger: take(ledger, 2, "@train:n/0", owner="1#first", fill=True),
    ),
    Case("ack", held_by_name, lambda ledger: filter_out(ledger, "@train:n/0", "g")),
    Case(
        "open_consumer",
        left_incomplete,
        lambda ledger: deliveries(ledger).open("n", Purpose.TRAIN, "mine"),
    ),
    Case("ack", held_by_name, lambda ledger: deliveries(ledger).ack("@train:n/0", owner="1#first")),
    Case("cancel_group", half_played, lambda ledger: dead_letters(ledger).cancel_group("g")),
    Case("give_back", held, lambda ledger: deliveries(ledger).give_back(["t"], Purpose.TRAIN)),
    Case("reject", held, lambda ledger: deliveries(ledger).reject("t", "r/g/0", "torn")),
    Case(
        "submit",
        entered,
        lambda ledger: ledger.submit(group("h"), source="s", cursor=Cursor(2, 4, "cd")),
    ),
    Case("submission_cursor", entered, lambda ledger: ledger.cursor("s")),
    Case(
        "pin_budgets", lambda ledger: None, lambda ledger: ledger.pin_budgets({FailureClass.ENV: 3})
    ),
    Case("requeue", dead, lambda ledger: dead_letters(ledger).requeue("r/g/0")),
    Case("requeue", dropped, lambda ledger: dead_letters(ledger).requeue("r/g/0")),
    Case("delete_dead", dead, lambda ledger: dead_letters(ledger).discard("r/g/0")),
    Case("delete_dead", dropped, lambda ledger: dead_letters(ledger).discard("r/g/0")),
    Case("cancel", two_groups, lambda ledger: dead_letters(ledger).cancel("r/g/0")),
    Case("cancel", half_played, lambda ledger: dead_letters(ledger).cancel("r/g/0")),
    Case("snapshot", dropped, lambda ledger: reader(ledger).stats()),
    Case("snapshot", held, lambda ledger: reader(ledger).standing()),
    Case("pin_tokenizer", two_groups, lambda ledger: ledger.pin_tokenizer("a", "b")),
    Case("seal", two_groups, Ledger.seal),
    Case(
        "keep_field",
        two_groups,
        lambda ledger: solve_rates.SolveRateStore(ledger.scripts).add("shop.train.0", "a", 0.5),
    ),
    Case("admit", lambda ledger: None, lambda ledger: versions(ledger).limit_staleness(2, 1, 8)),
    Case("publish", admitted, lambda ledger: versions(ledger).publish(3, "three", "t")),
    Case("publish", trained, lambda ledger: versions(ledger).publish(1, "1", "restored")),
    Case("claim", admitted, lambda ledger: ledger.claim("r/g/0", worker="w", token="t")),
]


def _settled(value: Any) -> Any:
    """Times masked: they move with Redis's clock."""
    try:
        return "a time" if float(value) > 1e9 else float(value)
    except ValueError:
        return value


def snapshot(ledger: Ledger) -> dict[bytes, Any]:
    """Everything in Redis."""
    found: dict[bytes, Any] = {}
    for key in sorted(ledger.redis.scan_iter("*")):
        match ledger.redis.type(key):
            case b"hash":
                found[key] = {
                    field: _settled(value) for field, value in ledger.redis.hgetall(key).items()
                }
            case b"zset":
                found[key] = {
                    member: _settled(score)
                    for member, score in ledger.redis.zrange(key, 0, -1, withscores=True)
                }
            case b"list":
                found[key] = ledger.redis.lrange(key, 0, -1)
            case b"set":
                found[key] = ledger.redis.smembers(key)
    return found


def values(reply: Reply) -> tuple[str, dict[str, Any]]:
    return reply.status, {name: reply[name] for name in reply}


def record_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """Script, arguments and reply of each call."""
    calls: list[tuple[str, Any, Any]] = []
    call = Scripts.call

    def recorded(self: Scripts, name: str, *args: Any) -> Any:
        reply = call(self, name, *args)
        calls.append((name, args, reply))
        return reply

    monkeypatch.setattr(Scripts, "call", recorded)
    return calls


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_twice_is_once(case: Case, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    case.prepare(ledger)
    before = snapshot(ledger)
    calls = record_calls(monkeypatch)
    case.act(ledger)
    ((name, args, reply),) = calls
    assert name == case.script
    once = snapshot(ledger)
    again = ledger.scripts.call(name, *args)
    assert snapshot(ledger) == once
    if name != "reap":  # what was handed out is being sent
        assert values(again) == values(ledger.scripts.call(name, *args))
    if name not in ("reap", "cancel_group", "snapshot"):
        assert values(again) == values(reply)
    # They move times only, or nothing.
    if name not in (
        "renew_leases",
        "renew_holds",
        "confirm",
        "snapshot",
    ):
        assert once != before


LUA = resources.files("rollq.ledger") / "lua"


def test_every_script_is_in_the_table() -> None:
    assert {case.script for case in CASES} == set(SCRIPTS) - {"look"}  # of all active runs


def test_every_counter_is_shown() -> None:
    text = "".join(file.read_text() for file in LUA.iterdir())
    assert set(re.findall(r"count\('(\w+)'", text)) <= set(COUNTS)


def test_a_script_touches_keys_of_its_run_alone(ledger: Ledger) -> None:
    with ledger.redis.monitor() as monitor:
        for case in CASES:
            ledger.redis.flushdb()
            case.prepare(ledger)
            case.act(ledger)
        ledger.redis.echo("the end")
        touched: set[str] = set()
        scripted = 0
        for entry in monitor.listen():
            words = entry["command"].split(" ")
            if words[0] == "ECHO":
                break
            if words[0] == "EVALSHA":
                touched.add(words[3])
            if entry["client_type"] == "lua" and words[0] not in ("TIME", "SCAN", "EVALSHA"):
                scripted += 1
                touched.add(words[1])
    assert scripted > 300
    prefix = Keys("r").prefix
    assert all(key.startswith(prefix) for key in touched), touched

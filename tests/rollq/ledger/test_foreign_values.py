"""What another program writes into records: it costs one job, group or run, and no reader breaks of
it or loops.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis

from rollq.client.waits import explain
from rollq.errors import FailureClass, LedgerError, RollqError
from rollq.job import Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.versions import Versions
from rollq.metrics.of_runs import RunMetrics
from rollq.snapshot.late import LateGroup, late_groups
from rollq.snapshot.rollouts import RolloutReader
from rollq_view.live_run import LiveRun
from tests.rollq.groups import ack, deliveries, take
from tests.rollq.samples import claim, group, play, reader, reap

INDEXES = ("queued", "leased", "dead", "open:train", "ready:train", "held:train")


def used_run(client: "redis.Redis", run: str) -> Ledger:
    """Of group g one member is done, one is played, one is dead and one is queued; other groups are
    ready and held.
    """
    ledger, policy = Ledger(client, run), Versions(client, run)
    ledger.pin_tokenizer("", "")
    for name, size in (("held", 1), ("ready", 1), ("g", 4)):
        ledger.submit(group(name, run=run, size=size), send_in_s=0)
        play(ledger, f"{run}/{name}/0")
    policy.limit_staleness(8, 1, None)
    policy.publish(0, "v0", "t")
    deliveries(ledger).open("c", Purpose.TRAIN, "x")
    take(ledger, 1, "t/0")
    claim(ledger, f"{run}/g/1", "t")
    ledger.fail(
        f"{run}/g/2", claim(ledger, f"{run}/g/2", "t2").lease, FailureClass.JOB, "x", final=True
    )
    return ledger


def late(ledger: Ledger) -> list[LateGroup]:
    run = RolloutReader(ledger.redis, ledger.run)
    return late_groups(run, run.fleet(5), 5)


def live_run(ledger: Ledger) -> LiveRun:
    return LiveRun(RolloutReader(ledger.redis, ledger.run), "redis://here")


def view(ledger: Ledger) -> None:
    """The viewer's page says what is wrong, beside all that can be read."""
    if trouble := live_run(ledger).listing().facts["trouble"]:
        raise LedgerError(trouble)


def looks(ledger: Ledger) -> list[Callable[[], object]]:
    """What shows many jobs and groups to people."""
    letters, look = DeadLetters(ledger.redis, ledger.run), reader(ledger)
    return [
        lambda: late(ledger),
        lambda: [explain(look, purpose) for purpose in Purpose],
        lambda: view(ledger),
        lambda: RunMetrics(ledger.redis).read(),
        lambda: (look.dead(), look.standing(), look.group_states(["g"])),
        lambda: (letters.open_groups(), letters.ids(FailureClass.JOB)),
    ]


def acts(ledger: Ledger) -> list[Callable[[], object]]:
    run, policy, look = ledger.run, Versions(ledger.redis, ledger.run), reader(ledger)
    return [
        lambda: (look.stats(), ledger.cursor("s")),
        *(lambda sample=sample: look.trajectory(f"{run}/g/{sample}") for sample in range(3)),  # type: ignore[misc]
        lambda: look.read([f"{run}/g/0", f"{run}/held/0"]),
        lambda: (policy.published(), policy.steps(["v0"])),
        lambda: policy.limit_staleness(8, 2, None),
        lambda: policy.publish(1, "v1", "t1"),
        lambda: reap(ledger),
        lambda: ledger.pin_tokenizer("a", "b"),
        lambda: ledger.submit(group("g", run=run, size=4)),
        lambda: ledger.submit(group("new", run=run)),
        lambda: ledger.claim(f"{run}/g/3", worker="w", token="t3"),
        lambda: ledger.renew_leases([(f"{run}/g/1", "1#t")]),
        lambda: ledger.fail(f"{run}/g/1", "1#t", FailureClass.ENV, "x"),
        lambda: DeadLetters(ledger.redis, run).requeue(f"{run}/g/2"),
        lambda: take(ledger, 1, "t/1"),
        lambda: deliveries(ledger).renew_holds(["t/0"]),
        lambda: ack(ledger, "t/0"),
        lambda: deliveries(ledger).open("c", Purpose.TRAIN, "y"),
    ]


def use(ledger: Ledger, *, whole_run: bool) -> None:
    began = time.monotonic()
    for look in looks(ledger):
        with suppress(*([RollqError] if whole_run else [])):
            look()
    for act in acts(ledger):
        with suppress(RollqError):
            act()
    assert time.monotonic() - began < 10, "something loops"


@pytest.mark.parametrize("value", [b"\xff\xfe", b"4294967296"])
def test_a_value_in_a_record(ledger: Ledger, value: bytes) -> None:
    keys = used_run(ledger.redis, "r").keys
    of_run = [keys.meta, keys.count, f"{keys.prefix}versions", f"{keys.prefix}consumer:train:c"]
    others = [
        keys.group("g"),
        keys.group("held"),
        *(keys.job(f"r/g/{sample}") for sample in range(4)),
    ]
    fields = {key: ledger.redis.hkeys(key) for key in (*of_run, *others)}
    for key, field in [(key, field) for key, found in fields.items() for field in found]:
        DeadLetters(ledger.redis, "r").forget_run()
        used_run(ledger.redis, "r")
        ledger.redis.hset(key, field, value)
        try:
            use(ledger, whole_run=key in of_run)
        except Exception as e:
            raise AssertionError(f"{key} {field!r}") from e


@pytest.mark.parametrize("name", ["run", "sources", *INDEXES])
def test_a_key_of_the_run_that_is_a_string(ledger: Ledger, name: str) -> None:
    bad, said = used_run(ledger.redis, "r").keys.prefix + name, list[str]()
    ledger.redis.set(bad, "garbage")
    for act in acts(ledger):
        try:
            act()
        except RollqError as e:
            said.append(str(e))
    assert any(
        f"{bad} is a string where a" in text and "run r" in text and "--whole-run" in text
        for text in said
    )
    assert ledger.redis.get(bad) == b"garbage"
    assert len(take(used_run(ledger.redis, "other"), 1, "t")) == 1
    assert DeadLetters(ledger.redis, "r").forget_run() > 0


@pytest.mark.parametrize("member", [b"\xff\xfe", b"r/\xff/0", b"a/b/c/d#1#2"])
@pytest.mark.parametrize("index", INDEXES)
def test_a_name_in_an_index(ledger: Ledger, index: str, member: bytes) -> None:
    used_run(ledger.redis, "r")
    ledger.redis.zadd(f"{ledger.keys.prefix}{index}", {member: 1})
    use(ledger, whole_run=False)


@pytest.mark.parametrize(
    ("field", "value"), [("size", b"4294967296"), ("spare", b"\xff"), ("done", b"many")]
)
def test_a_group_whose_numbers_cannot_be_read_is_named_beside_the_others(
    ledger: Ledger, field: str, value: bytes
) -> None:
    for name in ("g", "h"):
        ledger.submit(group(name))
    ledger.redis.hset(ledger.keys.group("g"), field, value)
    damaged, sound = late(ledger)
    assert f"rollq:{{r}}:group:g has no readable {field}" in damaged.damage
    assert (sound.damage, len(sound.jobs)) == ("", 2)
    rows = live_run(ledger).listing().rows
    assert {"r/h/0", "r/h/1"} <= rows.keys()
    assert field == "done" or f"rollq:{{r}}:group:g has no readable {field}" in rows["r/g/0"].why


def test_a_queue_that_is_no_name_costs_its_group(ledger: Ledger) -> None:
    for name in ("g", "h"):
        ledger.submit(group(name), send_in_s=0)
    ledger.redis.hset(ledger.keys.group("g"), "queue", b"\xff")
    assert reap(ledger) == ["r/h/0", "r/h/1"]
    assert {letter.job_id for letter in reader(ledger).dead()} == {"r/g/0", "r/g/1"}
    assert all(
        "rollq:{r}:group:g has no readable queue" in letter.reason
        for letter in reader(ledger).dead()
    )
    DeadLetters(ledger.redis, "r").requeue("r/g/0")  # to the default queue
    assert [(each.job_id, each.queue) for each in ledger.reap()] == [("r/g/0", "rollq")]

"""Values that another program writes into the ledger stop their run with an error that names the
key. Nothing is repaired, no reader breaks or loops, and other runs go on.
"""

import time
from collections.abc import Callable

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
    ledger.pin_budgets({FailureClass.ENV: 1, FailureClass.JOB: 1})
    for name, size in (("held", 1), ("ready", 1), ("g", 4)):
        ledger.submit(group(name, run=run, size=size), send_in_s=0)
        play(ledger, f"{run}/{name}/0")
    policy.limit_staleness(8, 1, None)
    policy.publish(0, "v0", "t")
    deliveries(ledger).open("c", Purpose.TRAIN, "x")
    take(ledger, 1, "t/0")
    claim(ledger, f"{run}/g/1", "t")
    ledger.fail(f"{run}/g/2", claim(ledger, f"{run}/g/2", "t2").lease, FailureClass.JOB, "x")
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


def use(ledger: Ledger) -> list[str]:
    """Everything that can be done with a run. Returns the errors."""
    began, errors = time.monotonic(), list[str]()
    for act in (*looks(ledger), *acts(ledger)):
        try:
            act()
        except RollqError as e:
            errors.append(str(e))
    assert time.monotonic() - began < 10, "something loops"
    return errors


@pytest.mark.parametrize("value", [b"\xff\xfe", b"4294967296"])
def test_a_value_in_a_record(ledger: Ledger, value: bytes) -> None:
    keys = used_run(ledger.redis, "r").keys
    records = [
        keys.meta,
        keys.count,
        f"{keys.prefix}versions",
        f"{keys.prefix}consumer:train:c",
        keys.group("g"),
        keys.group("held"),
        *(keys.job(f"r/g/{sample}") for sample in range(4)),
    ]
    fields = [(key, field) for key in records for field in ledger.redis.hkeys(key)]
    for key, field in fields:
        DeadLetters(ledger.redis, "r").forget_run()
        used_run(ledger.redis, "r")
        ledger.redis.hset(key, field, value)
        try:
            use(ledger)
        except Exception as e:
            raise AssertionError(f"{key} {field!r}") from e
    assert len(take(used_run(ledger.redis, "other"), 1, "t")) == 1


@pytest.mark.parametrize(
    "name", ["run", "sources", "count", "job:r/g/3", "group:g", "journal:r/g/1", *INDEXES]
)
def test_a_key_of_another_type_stops_its_run_and_no_other(ledger: Ledger, name: str) -> None:
    key = used_run(ledger.redis, "r").keys.prefix + name
    ledger.redis.set(key, "garbage")
    errors = use(ledger)
    named = [text for text in errors if key in text]
    assert named
    assert all("run r" in text and "--whole-run" in text for text in named)
    assert ledger.redis.get(key) == b"garbage"
    assert len(take(used_run(ledger.redis, "other"), 1, "t")) == 1
    assert DeadLetters(ledger.redis, "r").forget_run() > 0


@pytest.mark.parametrize("member", [b"\xff\xfe", b"r/\xff/0", b"a/b/c/d#1#2"])
@pytest.mark.parametrize("index", INDEXES)
def test_a_name_in_an_index(ledger: Ledger, index: str, member: bytes) -> None:
    used_run(ledger.redis, "r")
    ledger.redis.zadd(f"{ledger.keys.prefix}{index}", {member: 1})
    use(ledger)


@pytest.mark.parametrize(("field", "value"), [("size", b"4294967296"), ("spare", b"4294967296")])
def test_a_size_that_no_group_has_takes_no_memory(ledger: Ledger, field: str, value: bytes) -> None:
    for name in ("g", "h"):
        ledger.submit(group(name), send_in_s=0)
    ledger.redis.hset(ledger.keys.group("g"), field, value)
    damaged, sound = late(ledger)
    assert "rollq:{r}:group:g has no readable" in damaged.damage
    assert (sound.damage, len(sound.jobs)) == ("", 2)
    with pytest.raises(LedgerError, match=rf"group:g has no readable {field}"):
        reap(ledger)


@pytest.mark.parametrize("record", [b"garbage", b"1 x t d e", b"\xff"])
def test_the_record_of_an_acknowledged_group(ledger: Ledger, record: bytes) -> None:
    ledger.redis.set(ledger.keys.acked("g"), record)
    with pytest.raises(LedgerError, match=r"job r/g/0: .*cannot be read"):
        reader(ledger).job("r/g/0")

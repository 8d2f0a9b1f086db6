"""The fleet as a value, from a real Redis in the state of each fleet."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rollq.client.client import Client
from rollq.commands.top import as_json
from rollq.commands.top.frame import Pace
from rollq.job import Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import (
    AWAY,
    LIVE_S,
    PAUSED,
    READY,
    SILENT_S,
    EngineUse,
    live_workers,
    register,
    unregister,
)
from rollq.snapshot import fleet as module
from rollq.snapshot.fleet import FleetSnapshot, read_fleet
from rollq.snapshot.holdups import fleet_holdup
from rollq.snapshot.run import PLACES
from tests.rollq.client import fleets
from tests.rollq.groups import finish_groups
from tests.rollq.ledger.workers.test_live_workers import aged
from tests.rollq.samples import claim, group

WORKER = replace(fleets.WORKER, busy=1)


@pytest.fixture
def fleet(ledger: Ledger) -> Callable[[], FleetSnapshot]:
    return partial(read_fleet, ledger.redis)


def test_an_empty_redis(fleet: Callable[[], FleetSnapshot]) -> None:
    found = fleet()
    assert (found.runs, found.workers, found.engines, fleet_holdup(found)) == ([], [], [], "")
    assert found.server.used and not found.server.trouble


def test_a_run_with_its_oldest_group_and_its_staleness(
    fleet: Callable[[], FleetSnapshot], client: Client, ledger: Ledger
) -> None:
    client.limit_staleness(2, 3)
    client.publish(0)
    ledger.submit(group("old"))
    ledger.submit(group("new"))
    claim(ledger, "r/new/0")
    claim(ledger, "r/old/0")
    finish_groups(ledger, "ready")
    client.publish(2)
    ledger.redis.hset(ledger.keys.group("old"), "at", fleet().server.at - 90)
    (run,) = fleet().runs
    assert [run.counts[name] for name in ("run", "queued", "leased", "done")] == ["r", 2, 2, 2]
    assert [run.counts[f"groups_{place}"] for place in PLACES] == [2, 1, 0]
    assert (run.oldest and run.oldest.name, run.oldest_s) == ("old", pytest.approx(90, abs=20))
    assert (run.step, run.staleness("open", "ready"), run.max_staleness) == (2, 2, 3)
    assert (run.counts["reward_mean"], run.counts["stops"]) == (1.0, {"done": 2})


def test_groups_of_both_purposes_and_those_of_an_older_rollq(
    fleet: Callable[[], FleetSnapshot], ledger: Ledger
) -> None:
    ledger.submit(group("eval", purpose=Purpose.EVAL))
    ledger.submit(group("train"))
    ledger.redis.hdel(ledger.keys.group("eval"), "at")
    (run,) = fleet().runs
    assert (run.oldest and run.oldest.name, run.oldest_s, run.staleness("open")) == (
        "eval",
        None,
        None,
    )


def test_engines_are_those_of_all_workers(
    fleet: Callable[[], FleetSnapshot], ledger: Ledger
) -> None:
    a, b = EngineUse("http://a", READY, 3, 5, 2, 0.25), EngineUse("http://b", AWAY, 0)
    register(ledger.redis, replace(WORKER, engines=(a, b), turns_s=1.5, tokens_s=30.0))
    other = replace(
        WORKER, name="v", engines=(a._replace(state=PAUSED, running=6), b), busy=3, turns_s=1.0
    )
    register(ledger.redis, other)
    register(ledger.redis, replace(other, name="u"))
    found = fleet()
    first, second = found.engines
    assert (first.url, first.state, first.workers, first.episodes) == ("http://a", PAUSED, 3, 9)
    assert (first.running, first.queued, first.token_usage) == (6, 2, 0.25)
    assert (second.state, second.running, second.token_usage) == (AWAY, None, None)
    assert (found.slots, found.in_flight, found.turns_s, found.tokens_s) == (12, 7, 3.5, 30.0)


def test_a_worker_that_is_gone_without_a_word_is_named_for_a_minute(ledger: Ledger) -> None:
    """Also by a command that looks once; one that signed off is not."""
    ledger.submit(group())
    for name in ("killed", "stopped", "alive"):
        register(ledger.redis, replace(WORKER, name=name))
    unregister(ledger.redis, "stopped")
    for seconds, is_named in ((SILENT_S + 1, True), (LIVE_S, True), (20, True), (20, False)):
        aged(ledger.redis, "killed", seconds)
        found = read_fleet(ledger.redis)
        assert ("nothing was heard of killed for " in fleet_holdup(found)) == is_named
    assert [worker.name for worker in found.workers] == ["alive"] and not found.lost


def test_runs_with_work_come_first_and_the_others_are_counted(
    fleet: Callable[[], FleetSnapshot],
    redis_url: str,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_RUNS", 2)
    for run in ("busy", "r", "newest"):
        Ledger(ledger.redis, run).submit(group("g", run=run))
    claim(Ledger(ledger.redis, "busy"), "busy/g/0")
    found = fleet()
    assert ([run.run for run in found.runs], found.more_runs) == (["busy", "newest"], 1)
    assert [run.run for run in read_fleet(ledger.redis, "r").runs] == ["r"]


def test_a_run_that_cannot_be_read_is_named_and_hides_no_other(
    fleet: Callable[[], FleetSnapshot], ledger: Ledger
) -> None:
    Ledger(ledger.redis, "damaged").submit(group("g", run="damaged"))
    ledger.submit(group())
    ledger.redis.set("rollq:{damaged}:leased", "junk")
    found = fleet()
    assert [run.run for run in found.runs] == ["r"]
    assert "rollq:{damaged}:leased" in fleet_holdup(found)


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (
            {"used_memory": 2**30, "maxmemory": 2**30},
            "Redis is out of memory (1024.0 of 1024.0 MiB): workers claim nothing",
        ),
        (
            {"rdb_last_bgsave_status": "err"},
            "Redis cannot write to its disk (rdb_last_bgsave_status: err)",
        ),
        ({"role": "slave"}, "this Redis is a replica and takes no writes"),
        (
            {"min_slaves_good_slaves": 0},
            "this Redis takes no writes without its replicas, and none",
        ),
    ],
)
def test_a_redis_that_takes_no_writes_comes_before_all_else(
    fleet: Callable[[], FleetSnapshot],
    ledger: Ledger,
    info: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger.submit(group())
    monkeypatch.setattr("rollq.snapshot.fleet.server_info", lambda connection: info)
    assert fleet_holdup(fleet()).startswith(said)


def test_the_holdup_of_any_run_is_seen(fleet: Callable[[], FleetSnapshot], ledger: Ledger) -> None:
    register(ledger.redis, WORKER)
    ledger.submit(group())
    claim(ledger, "r/g/0")
    assert fleet_holdup(fleet()) == ""
    Ledger(ledger.redis, "q").submit(group("g", run="q", queue="qwen"))
    assert "run q: 2 queued jobs, 0 being played, and the live" in fleet_holdup(fleet())


def test_a_consumer_waits_in_a_run_without_work(
    fleet: Callable[[], FleetSnapshot], client: Client, ledger: Ledger
) -> None:
    client.limit_staleness(1, 0)
    finish_groups(ledger, "a")
    next(client.batches(1)).ack()
    assert fleet_holdup(fleet()) == ""
    assert ledger.submit(group("b")).full
    assert "admission lets no more groups in" in fleet_holdup(fleet())


def test_a_look_does_not_depend_on_the_number_of_jobs(
    fleet: Callable[[], FleetSnapshot], ledger: Ledger
) -> None:
    def commands() -> int:
        before = sum(row["calls"] for row in ledger.redis.info("commandstats").values())
        fleet()
        return int(sum(row["calls"] for row in ledger.redis.info("commandstats").values()) - before)

    register(ledger.redis, WORKER)
    for number in range(30):
        ledger.submit(group(f"g{number}", size=8))
    fleet()  # the first look loads its scripts
    few = commands()
    for number in range(30, 90):
        ledger.submit(group(f"g{number}", size=8))
    assert commands() == few


def test_rollouts_a_minute(fleet: Callable[[], FleetSnapshot], ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    found, pace = fleet(), Pace()
    assert pace.of(found) == {}
    finish_groups(ledger, "b")
    later = fleet()
    for seconds, per_minute in ((30, 4.0), (80, pytest.approx(1.5)), (91, 0.0)):
        server = replace(later.server, at=found.server.at + seconds)
        assert pace.of(replace(later, server=server)) == {"r": per_minute}


def test_dead_jobs_that_are_played_again_are_no_pace(
    fleet: Callable[[], FleetSnapshot], ledger: Ledger
) -> None:
    ledger.submit(group("a"))
    letters = DeadLetters(ledger.redis, "r")
    letters.cancel("r/a/0")
    found, pace = fleet(), Pace()
    pace.of(found)
    letters.requeue("r/a/0")
    server = replace(found.server, at=found.server.at + 2)
    assert pace.of(replace(fleet(), server=server)) == {"r": 0.0}


def test_the_json_has_everything(fleet: Callable[[], FleetSnapshot], ledger: Ledger) -> None:
    register(ledger.redis, replace(WORKER, engines=(EngineUse("http://a", READY, 3),)))
    ledger.submit(group())
    found = json.loads(json.dumps(as_json(fleet())))
    assert found["slots"] == 4 and found["runs"][0]["oldest"] == "g"
    assert found["workers"][0]["engines"][0]["url"] == found["engines"][0]["url"] == "http://a"
    assert live_workers(ledger.redis)[0].name == found["workers"][0]["name"]

"""`rollq pull`: into a file, past damaged trajectories, beside other pulls, and stopped at any
moment.
"""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis

from rollq import cli
from rollq.client.client import Client
from rollq.errors import NotHeld
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.processes.embedded_redis import EmbeddedRedis
from rollq.trajectory_extras import Extra
from tests.rollq.commands.conftest import Pulls
from tests.rollq.export.exported_files import jobs
from tests.rollq.groups import deliveries, drop_group, end_holds, finish_groups, take
from tests.rollq.samples import group, play, reader


def spoil(ledger: Ledger, job_id: str, entry: int) -> None:
    """Damages the texts of a journal entry, but nothing that a trainer needs."""
    key = ledger.keys.journal(job_id)
    fields = msgpack.unpackb(ledger.redis.lindex(key, entry))
    [where] = [
        at
        for at, field in enumerate(fields)
        if isinstance(field, bytes) and field[:1] in (b"\0", b"\1")
    ][-1:]
    fields[where] = b"\1 no zlib stream"
    ledger.redis.lset(key, entry, msgpack.packb(fields))


def test_a_name_that_still_holds_more_than_was_asked_for(
    ledger: Ledger, redis_url: str, out: Path, pull: Pulls
) -> None:
    finish_groups(ledger, "a", "b", "c")
    with Client(redis_url, run="r") as client, client.consumer(name="shop") as consumer:
        consumer.next(3)
    found = pull(1, "--out", out, "--name", "shop", "--json").json
    assert (found["groups"], found["missing"]) == (3, 0)


@pytest.mark.parametrize(("entry", "texts"), [(3, "observed"), (6, "closed")])
@pytest.mark.parametrize("min_viable", [1, 2])
def test_texts_that_cannot_be_read_cost_that_job_alone(
    ledger: Ledger, out: Path, pull: Pulls, entry: int, texts: str, min_viable: int
) -> None:
    finish_groups(ledger, "a", "b", "c", seal=True, min_viable=min_viable)
    spoil(ledger, "r/b/0", entry)
    found = pull(3, "--out", out, "--json", code=0 if min_viable == 1 else 1).json
    left = ["r/b/1"] if min_viable == 1 else []
    assert jobs(out) == ["r/a/0", "r/a/1", *left, "r/c/0", "r/c/1"]
    assert (found["delivered"], found["duplicates"], found["missing"]) == (
        4 + len(left),
        0,
        1 - len(left),
    )
    [letter] = reader(ledger).dead()
    assert (letter.job_id, letter.failure) == ("r/b/0", "job")
    assert "r/b/0" in letter.reason
    assert "unreadable texts" in letter.reason
    stats = reader(ledger).stats()
    assert (stats["done"], stats["dead"], stats["delivered"]) == (5, 1, 4 + len(left))
    assert stats["groups_dropped"] == 1 - len(left)


def test_a_trainer_can_reject_a_job(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "a", "b", seal=True, min_viable=1)
    batches = client.batches(2, timeout=5)
    first = next(batches)
    first.reject("r/a/1", "r/a/1: a token that my model does not know")
    with pytest.raises(NotHeld, match="was rejected"):
        first.ack()
    second = next(batches)
    assert [t.job.id for t in second.trajectories] == ["r/a/0", "r/b/0", "r/b/1"]
    assert [list(g.dead) for g in second.groups] == [["r/a/1"], []]
    second.ack()
    assert next(batches, None) is None
    [letter] = reader(ledger).dead()
    assert letter.reason == "r/a/1: a token that my model does not know"
    assert reader(ledger).stats()["redelivered"] == 0


def test_a_run_name_that_was_used_before(ledger: Ledger, out: Path, pull: Pulls) -> None:
    """The old lines are not mistaken for the new episodes: nothing is skipped, nothing is
    acknowledged unwritten.
    """
    finish_groups(ledger, "a", seal=True)
    pull(1, "--out", out)
    DeadLetters(ledger.redis, "r").forget_run()
    finish_groups(ledger, "a", seal=True, reward=0.0)
    before = out.read_bytes()
    said = pull(1, "--out", out, code=2).err
    assert f"{out} has another episode of job r/a/0, from before this run began" in said
    assert "write to another file" in said
    assert out.read_bytes() == before
    assert reader(ledger).stats()["delivered"] == 0
    end_holds(ledger, "a")
    other = out.with_name("other.jsonl")
    pull(1, "--out", other)
    assert jobs(other) == ["r/a/0", "r/a/1"]


def test_a_finished_run_that_is_pulled_again_misses_nothing(ledger: Ledger, pull: Pulls) -> None:
    finish_groups(ledger, "a", "b", seal=True)
    pull(2)
    said = pull(2, code=1).err
    assert "all 2 groups were acknowledged before" in said and "missing" not in said


def test_a_pull_ends_when_a_sealed_run_has_fewer_groups(ledger: Ledger, pull: Pulls) -> None:
    finish_groups(ledger, "a", "b", seal=True)
    said = pull(5, "--json", code=1)
    assert said.json | {"stops": None} == {
        "staleness_max": None,
        "run": "r",
        "groups": 2,
        "missing": 3,
        "delivered": 4,
        "duplicates": 0,
        "reward_mean": 1.0,
        "stops": None,
    }
    assert "run r: the run is sealed and has no more: 3 of 5 groups are missing" in said.err


def skip_only_group(ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    take(ledger, 1, "t")
    deliveries(ledger).skip("t", "a", "stale")


def drop_only_group(ledger: Ledger) -> None:
    ledger.submit(group("a"))
    drop_group(ledger, "a")


@pytest.mark.parametrize(
    ("prepare", "hint"),
    [
        (lambda ledger: ledger.submit(group("a")), "no worker is alive: start `rollq worker`"),
        (skip_only_group, "0 dropped, 1 skipped (stale)"),
        (drop_only_group, "rollq jobs list r"),
    ],
    ids=["queued", "skipped", "dropped"],
)
def test_a_pull_that_times_out_says_why(
    ledger: Ledger, pull: Pulls, prepare: object, hint: str
) -> None:
    prepare(ledger)  # type: ignore[operator]
    said = pull(4, "--timeout", 0.1, code=1).err
    assert "run r: no more within 0.1 s: " in said and "of 4 groups are missing" in said
    assert hint in said


def test_the_last_progress_of_a_pull_is_how_it_ended(
    ledger: Ledger, pull: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is submitted during the only wait, after which nothing else would look."""
    take = Deliveries.take

    def late(self: Deliveries, *args: Any, **options: Any) -> Any:
        ledger.submit(group("late"))
        return take(self, *args, **options)

    finish_groups(ledger, "a")
    deliveries(ledger).take(1, "another/0")
    monkeypatch.setattr(Deliveries, "take", late)
    said = pull(2, "--timeout", 0.1, code=1).err
    progress = [line for line in said.splitlines() if re.match(r"\d+/2  groups", line)]
    assert "ready 0  open 0  held 1" in progress[0] and "ready 0  open 1  held 1" in progress[-1]


KILLED = """
import os, sys
from rollq import cli

write = os.write

def torn(fd, data):
    write(fd, data[: len(data) * 2 // 3])
    os.kill(os.getpid(), 9)

os.write = torn
cli.main(["pull", "--run", "r", "--groups", "2", "--out", sys.argv[1]])
"""


def test_a_pull_that_is_killed_while_it_writes_can_be_repeated(
    ledger: Ledger, out: Path, pull: Pulls
) -> None:
    """Every acknowledged group is in the file, and the next pull cuts off the torn line."""
    finish_groups(ledger, "a", "b", "c", seal=True)
    pull(1, "--out", out)
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not out.read_bytes().endswith(b"\n")
    end_holds(ledger, "b", "c")
    pull(2, "--out", out)
    assert jobs(out) == [f"r/{name}/{sample}" for name in "abc" for sample in range(2)]
    assert reader(ledger).stats()["delivered"] == 6


def test_a_hold_that_was_lost_before_the_ack(
    ledger: Ledger, out: Path, pull: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull stood still between file and ack, and another consumer took the group. It continues
    with the next.
    """
    finish_groups(ledger, "a", "b")
    ack, stolen = Deliveries.ack, threading.Event()

    def late(self: Deliveries, token: str, *args: Any, **options: Any) -> None:
        if not stolen.is_set():
            stolen.set()
            end_holds(ledger, "a")
            assert self.take(1, "thief/0").groups
            ack(self, "thief/0")
        ack(self, token, *args, **options)

    monkeypatch.setattr(Deliveries, "ack", late)
    said = pull(1, "--out", out, "--timeout", 10).err
    assert "written down too late, and so not acknowledged: group r/a is not held" in said
    assert jobs(out) == ["r/a/0", "r/a/1", "r/b/0", "r/b/1"]
    assert reader(ledger).stats()["delivered"] == 4


def test_ready_groups_are_taken_before_all_are_there(
    ledger: Ledger, out: Path, pull: Pulls
) -> None:
    """Else a producer that waits for acknowledgements would never submit the rest."""
    finish_groups(ledger, "a", "b")
    pull(9, "--out", out, "--timeout", 0.2, code=1)
    assert jobs(out) == ["r/a/0", "r/a/1", "r/b/0", "r/b/1"]
    assert reader(ledger).stats()["groups_acked"] == 2


def test_a_redis_that_goes_away_for_good_is_one_clear_line(
    pull: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Deliveries.take
    with EmbeddedRedis() as server:

        def gone(*args: Any, **options: Any) -> Any:
            server.stop()  # here: while it waits for a group
            return take(*args, **options)

        monkeypatch.setattr(Deliveries, "take", gone)
        last = pull(1, "--wait", "--timeout", 1, "--redis", server.url, code=1).err.splitlines()[-1]
    assert last.startswith(f"rollq: Redis at {server.url} went away and did not come back: ")
    assert last.endswith("Start it again, then repeat the same line")


def test_extras_are_written_when_they_are_asked_for(
    ledger: Ledger, tmp_path: Path, pull: Pulls
) -> None:
    experts = Extra(dtype="int32", shape=(2,), data=bytes(8))
    for name in ("a", "b"):
        ledger.submit(group(name, size=1))
        play(ledger, f"r/{name}/0", routed_experts=experts)
    pull(1, "--out", tmp_path / "a.jsonl", "--extras", "routed_experts,top_p_ids")
    pull(1, "--out", tmp_path / "b.jsonl")
    with_extras, without = (
        json.loads((tmp_path / f"{name}.jsonl").read_text()) for name in ("a", "b")
    )
    assert with_extras["extras"] == {
        "routed_experts": {"dtype": "int32", "shape": [2], "data": "AAAAAAAAAAA="}
    }
    assert "extras" not in without
    assert cli.main(["audit", str(tmp_path / "a.jsonl"), "--offline"]) == 0


def test_it_waits_for_a_redis_that_a_script_keeps_busy(
    redis_url: str, ledger: Ledger, pull: Pulls
) -> None:
    finish_groups(ledger, "g", seal=True)
    before = ledger.redis.config_get("lua-time-limit")
    ledger.redis.config_set("lua-time-limit", 50)
    script = threading.Thread(target=lambda: loop(ledger))
    script.start()
    time.sleep(0.3)
    threading.Timer(1.5, redis.Redis.from_url(redis_url).script_kill).start()
    pull(1)
    script.join()
    ledger.redis.config_set("lua-time-limit", before["lua-time-limit"])


def loop(ledger: Ledger) -> None:
    with suppress(redis.ResponseError):
        ledger.redis.eval("while true do end", 0)

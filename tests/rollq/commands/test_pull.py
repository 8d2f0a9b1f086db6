"""`rollq pull`: into a file, past damaged trajectories, beside other pulls, and stopped at any moment."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rollq import cli
from rollq.client.client import Client
from rollq.errors import NotHeld
from rollq.job import Purpose
from rollq.ledger import connection
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.processes.embedded_redis import EmbeddedRedis
from tests.rollq.samples import group, play


def finish(ledger: Ledger, *names: str, seal: bool = True, reward: float = 1.0, **changes: object) -> None:
    """Groups of two, played."""
    for name in names:
        ledger.submit(group(name, **changes))
        for sample in range(2):
            play(ledger, f"r/{name}/{sample}", reward)
    if seal:
        ledger.seal()


def pull(redis_url: str, groups: int, *more: str) -> int:
    return cli.main(["pull", "--run", "r", "--groups", str(groups), "--redis", redis_url, *more])


def jobs(path: Path) -> list[str]:
    return [json.loads(line)["job"] for line in path.read_text().splitlines()]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def spoil(ledger: Ledger, job_id: str, entry: int) -> None:
    """Texts that cannot be read; all that a trainer needs still can."""
    key = ledger.keys.journal(job_id)
    fields = msgpack.unpackb(ledger.redis.lindex(key, entry))
    [where] = [at for at, field in enumerate(fields) if isinstance(field, bytes) and field[:1] in (b"\0", b"\1")][-1:]
    fields[where] = b"\1 no zlib stream"
    ledger.redis.lset(key, entry, msgpack.packb(fields))


@pytest.mark.parametrize(("entry", "texts"), [(1, "prompt"), (3, "observed"), (6, "closed")])
@pytest.mark.parametrize("min_viable", [1, 2])
def test_texts_that_cannot_be_read_cost_that_job_alone(
    redis_url: str,
    ledger: Ledger,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    entry: int,
    texts: str,
    min_viable: int,
) -> None:
    finish(ledger, "a", "b", "c", min_viable=min_viable)
    spoil(ledger, "r/b/0", entry)
    assert pull(redis_url, 3, "--out", str(out), "--json") == (0 if min_viable == 1 else 1)
    found = json.loads(capsys.readouterr().out)
    left = ["r/b/1"] if min_viable == 1 else []
    assert jobs(out) == ["r/a/0", "r/a/1", *left, "r/c/0", "r/c/1"]
    assert (found["delivered"], found["duplicates"], found["missing"]) == (4 + len(left), 0, 1 - len(left))
    [letter] = ledger.dead()
    assert (letter.job_id, letter.failure) == ("r/b/0", "job")
    assert "r/b/0" in letter.reason
    assert "unreadable texts" in letter.reason
    stats = ledger.stats()
    assert (stats["done"], stats["dead"], stats["delivered"]) == (5, 1, 4 + len(left))
    assert stats["groups_dropped"] == 1 - len(left)


def test_a_trainer_may_reject_what_it_cannot_use(redis_url: str, ledger: Ledger) -> None:
    finish(ledger, "a", "b", min_viable=1)
    with Client(redis_url, run="r") as client:
        batches = client.batches(2, timeout=5)
        first = next(batches)
        first.reject("r/a/1", "r/a/1: a token that my model does not know")
        with pytest.raises(NotHeld):
            first.ack()
        second = next(batches)
        assert [t.job.id for t in second.trajectories] == ["r/a/0", "r/b/0", "r/b/1"]
        assert [list(g.dead) for g in second.groups] == [["r/a/1"], []]
        second.ack()
        assert next(batches, None) is None
    [letter] = ledger.dead()
    assert letter.reason == "r/a/1: a token that my model does not know"
    assert ledger.stats()["redelivered"] == 0


def test_what_was_written_and_not_acknowledged_is_not_written_again(
    redis_url: str, ledger: Ledger, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(ledger, "a", "b")
    assert pull(redis_url, 2, "--no-ack", "--out", str(out)) == 0
    assert "not acknowledged: they are handed out again in a minute" in capsys.readouterr().out
    for name in ("a", "b"):
        ledger.redis.zadd(ledger.keys.held("train"), {name: 1})
    before = out.read_bytes()
    assert pull(redis_url, 2, "--out", str(out)) == 0
    assert f"4 of them were in {out} already, and are not written twice" in capsys.readouterr().out
    assert out.read_bytes() == before
    assert ledger.stats()["delivered"] == 4


def test_the_name_of_an_earlier_run(
    redis_url: str, ledger: Ledger, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines are not taken for those of the new one: nothing is skipped unsaid, nothing acknowledged unwritten."""
    finish(ledger, "a")
    assert pull(redis_url, 1, "--out", str(out)) == 0
    DeadLetters(ledger.redis, "r").forget_run()
    finish(ledger, "a", reward=0.0)
    before = out.read_bytes()
    capsys.readouterr()
    assert pull(redis_url, 1, "--out", str(out)) == 2
    said = capsys.readouterr().err
    assert f"{out} has another episode of job r/a/0, from an earlier run of that name perhaps" in said
    assert "write to another file" in said
    assert out.read_bytes() == before
    assert ledger.stats()["delivered"] == 0
    ledger.redis.zadd(ledger.keys.held("train"), {"a": 1})
    other = out.with_name("other.jsonl")
    assert pull(redis_url, 1, "--out", str(other)) == 0
    assert jobs(other) == ["r/a/0", "r/a/1"]


def test_a_look_in_a_sealed_run_with_fewer_groups_ends(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(ledger, "a", "b")
    assert pull(redis_url, 5, "--no-ack", "--json") == 1
    said = capsys.readouterr()
    assert json.loads(said.out) | {"stops": None} == {
        "run": "r", "groups": 2, "missing": 3, "delivered": 4, "duplicates": 0, "reward_mean": 1.0, "stops": None
    }  # fmt: skip
    assert "run r: the run is sealed and has no more: 3 of 5 groups are missing" in said.err


@pytest.mark.parametrize(
    ("prepare", "hint"),
    [
        (lambda ledger: None, "nothing was submitted to this run"),
        (lambda ledger: ledger.submit(group("a")), "nobody is playing"),
        (lambda ledger: finish(ledger, "a", seal=False, purpose=Purpose.EVAL), "see --purpose"),
        (lambda ledger: finish(ledger, "a", seal=False), "ask for fewer groups, or see rollq submit --seal"),
    ],
    ids=["empty", "queued", "purpose", "short"],
)
def test_a_wait_in_vain_says_why(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str], prepare: object, hint: str
) -> None:
    prepare(ledger)  # type: ignore[operator]
    assert pull(redis_url, 4, "--timeout", "0.1") == 1
    said = capsys.readouterr().err
    assert "run r: no more within 0.1 s: " in said and "of 4 groups are missing" in said
    assert hint in said


@pytest.fixture
def waiting(redis_url: str, ledger: Ledger, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A pull into the file, which has one group and waits for another."""
    finish(ledger, "a", seal=False)
    line = [sys.executable, "-m", "rollq", "pull", "--run", "r", "--groups", "1", "--out", str(out)]
    done = subprocess.run([*line, "--redis", redis_url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with subprocess.Popen(
        [*line, "--redis", redis_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr
            while "0/1  groups of run r" not in process.stderr.readline():
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def test_two_pulls_into_one_file(
    waiting: subprocess.Popen[str], redis_url: str, ledger: Ledger, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(redis_url, 1, "--out", str(out)) == 2
    said = capsys.readouterr().err
    assert said == f"rollq: {out} is being written by another process: wait for its end, or name another file\n"
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait(60)
    finish(ledger, "b", seal=False)
    assert pull(redis_url, 1, "--out", str(out)) == 0
    assert jobs(out) == ["r/a/0", "r/a/1", "r/b/0", "r/b/1"]


def test_interrupted_it_says_what_it_has(waiting: subprocess.Popen[str], out: Path) -> None:
    waiting.send_signal(signal.SIGINT)
    said, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert said.startswith("0 groups, 0 trajectories, reward -")
    assert err.endswith("rollq: interrupted: what was not acknowledged comes again within a minute\n")
    assert "Traceback" not in err
    assert jobs(out) == ["r/a/0", "r/a/1"]


def test_killed_while_it_writes(redis_url: str, ledger: Ledger, out: Path) -> None:
    """Torn anywhere, whatever was acknowledged is in the file, and the next pull goes on."""
    finish(ledger, "a", "b", "c")
    code = f"""
import os, sys
from rollq import cli
from rollq.export import jsonl

def torn(self, data):
    os.write(self._fd, data[: len(data) * 2 // 3])
    os.kill(os.getpid(), 9)

if sys.argv[1] == "torn":
    jsonl.TrajectoryFile._append = torn
sys.exit(cli.main(["pull", "--run", "r", "--groups", sys.argv[2], "--out", {str(out)!r}, "--redis", {redis_url!r}]))
"""
    for how, groups, returned in (("whole", "1", 0), ("torn", "2", -signal.SIGKILL)):
        done = subprocess.run([sys.executable, "-c", code, how, groups], capture_output=True, text=True, timeout=60)
        assert done.returncode == returned, done.stderr
    assert not out.read_bytes().endswith(b"\n")
    for name in ("b", "c"):
        ledger.redis.zadd(ledger.keys.held("train"), {name: 1})
    assert pull(redis_url, 2, "--out", str(out)) == 0
    assert jobs(out) == [f"r/{name}/{sample}" for name in "abc" for sample in range(2)]
    assert (ledger.stats()["delivered"], ledger.stats()["duplicates"]) == (6, 0)


def test_a_hold_that_was_lost_before_the_ack(
    redis_url: str, ledger: Ledger, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frozen between file and ack: another consumer has the groups, and this pull goes on with what comes."""
    finish(ledger, "a", "b", seal=False)
    ack, stolen = Ledger.ack, threading.Event()

    def late(self: Ledger, token: str, ids: list[str]) -> None:
        if not stolen.is_set():
            stolen.set()
            self.redis.zadd(self.keys.held("train"), {"a": 1})
            [taken] = self.take(1, "thief")
            ack(self, "thief", taken.members)
        ack(self, token, ids)

    monkeypatch.setattr(Ledger, "ack", late)
    assert pull(redis_url, 1, "--out", str(out), "--timeout", "10") == 0
    assert "written down too late, and so not acknowledged: group r/a is not held" in capsys.readouterr().err
    assert jobs(out) == ["r/a/0", "r/a/1", "r/b/0", "r/b/1"]
    assert (ledger.stats()["delivered"], ledger.stats()["duplicates"]) == (4, 0)


def test_it_waits_for_what_is_played_later(redis_url: str, ledger: Ledger, out: Path) -> None:
    later = threading.Thread(target=lambda: (time.sleep(2.5), finish(ledger, "a", "b")))  # longer than one look
    later.start()
    assert pull(redis_url, 2, "--out", str(out), "--timeout", "60") == 0
    later.join()
    assert jobs(out) == ["r/a/0", "r/a/1", "r/b/0", "r/b/1"]


def test_what_is_ready_is_taken_though_less_than_asked_for(redis_url: str, ledger: Ledger, out: Path) -> None:
    """A producer that waits for acknowledgements would otherwise never come to submit the rest."""
    finish(ledger, "a", "b", seal=False)
    assert pull(redis_url, 9, "--out", str(out), "--timeout", "0.2") == 1
    assert jobs(out) == ["r/a/0", "r/a/1", "r/b/0", "r/b/1"]
    assert ledger.stats()["groups_acked"] == 2


def test_redis_goes_away_for_good(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(connection, "RETRIES", 2)
    take = Ledger.take
    with EmbeddedRedis() as server:

        def gone(*args: Any, **options: Any) -> Any:
            server.stop()  # here: while it waits for a group
            return take(*args, **options)

        monkeypatch.setattr(Ledger, "take", gone)
        assert pull(server.url, 1) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"rollq: Redis at {server.url} went away and did not come back: ")
    assert last.endswith("when it is up again, the same line goes on")

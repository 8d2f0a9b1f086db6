"""`rollq jobs`, and what `rollq show` says of a dead job: what is listed, requeued, cancelled and
dropped.
"""

from rollq.errors import FailureClass
from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Says
from tests.rollq.ledger.test_dead_letters import TRACE, kill
from tests.rollq.samples import group, play, reader


def test_the_list(ledger: Ledger, says: Says) -> None:
    ledger.submit(group())
    assert says("jobs", "list", "r").out == "run r: no dead jobs\n"
    assert says("jobs", "list", "r/g/0", code=2).out == ""
    kill(ledger, "r/g/0", FailureClass.ENGINE)
    kill(ledger, "r/g/1", FailureClass.ENV, turns=2)
    head, *rows = says("jobs", "list", "r").out.splitlines()
    assert head.split() == ["JOB", "CLASS", "ATTEMPTS", "TURN", "AGE", "WORKER", "REASON"]
    assert [row.split()[:4] for row in rows] == [
        ["r/g/1", "env", "2", "2"],
        ["r/g/0", "engine", "5", "1"],
    ]
    assert rows[0].endswith("  w       it broke")
    (only,) = says("jobs", "list", "r", "--class", "engine", "--json").json
    assert {key: only[key] for key in ("job", "class", "attempts", "turn", "worker", "reason")} == {
        "job": "r/g/0",
        "class": "engine",
        "attempts": 5,
        "turn": 1,
        "worker": "w",
        "reason": TRACE,
    }
    assert "no dead jobs of class user" in says("jobs", "list", "r", "--class", "user").out


def test_show_of_a_dead_job(ledger: Ledger, says: Says) -> None:
    ledger.submit(group())
    kill(ledger, "r/g/0")
    text = says("show", "r/g/0").out
    assert "stop      failed   reward -   failure env" in text
    assert "failures  2 env; the last one: it broke" in text
    assert "journals  set aside: 1; see one with --attempt N" in text
    assert "It is red." in text  # the partial transcript
    assert text.rstrip().endswith("File x.py\nValueError: no\\x1b[31m such")
    before = says("show", "r/g/0", "--attempt", "1").out
    assert "attempt 1" in before and "It is red." in before and "Traceback" not in before
    said = says("show", "r/g/0", "--attempt", "7", code=1).err
    assert "no journal was set aside by attempt 7 (there are: 1)" in said


def test_requeue_by_class_by_name_and_all(ledger: Ledger, says: Says) -> None:
    ledger.submit(group("a", size=3))
    kill(ledger, "r/a/0", FailureClass.ENGINE)
    kill(ledger, "r/a/1")
    kill(ledger, "r/a/2")
    ledger.submit(group("b", min_viable=1))
    kill(ledger, "r/b/0")
    play(ledger, "r/b/1")
    requeue = ("jobs", "requeue")
    assert says(*requeue, "r", "--class", "engine").out == "run r: 1 requeued\n"
    assert says(*requeue, "r/a/1").out == "run r: 1 requeued\n"
    text = says(*requeue, "r").out
    assert "its group is ready without it" in text
    assert text.endswith("run r: 1 requeued, 1 not\n")
    done = says(*requeue, "r/b/0", "r/a/2", "--json", code=1).json
    assert (done["run"], done["requeued"], sorted(done["refused"])) == ("r", 0, ["r/a/2", "r/b/0"])
    for wrong in ("s/a/0 r/a/0", "r r/a/0", "r s", "r/a", "r/a/0 --class env"):
        says(*requeue, *wrong.split(), code=2)


def test_nonsense_among_the_jobs_stops_no_command(ledger: Ledger, says: Says) -> None:
    ledger.submit(group("a", size=3))
    kill(ledger, "r/a/0")
    junk = {"junk": 0, "\x1b[31mred": 0, b"\xff": 1, "other/a/0": 2, "r/a/7": 3, "r/nobody/0": 4}
    for key in (ledger.keys.dead, ledger.keys.queued):
        ledger.redis.zadd(key, junk)
    ledger.redis.zadd(ledger.keys.leased, {"r/a/1#x": 0, "junk": 1})
    assert "junk" in says("jobs", "list", "r").out
    text = says("jobs", "requeue", "r").out
    assert "\x1b" not in text
    assert text.endswith("run r: 1 requeued, 6 not\n")
    assert "'junk' is not a job id" in text
    assert says("jobs", "cancel", "r", "--all", "--json").json["cancelled"] >= 3
    assert says("jobs", "drop", "r").out.endswith("run r: 3 dropped, 6 not\n")
    assert reader(ledger).stats()["discarded"] == 3


def test_drop_and_cancel(ledger: Ledger, says: Says) -> None:
    ledger.submit(group("a", size=3))
    says("jobs", "cancel", "r", code=2)
    assert says("jobs", "cancel", "r/a/0").out == "run r: 1 cancelled\n"
    assert says("jobs", "cancel", "r", "--all").out == "run r: 2 cancelled\n"
    assert says("jobs", "drop", "r", "--class", "env").out == "run r: 0 dropped\n"
    assert says("jobs", "drop", "r").out == "run r: 3 dropped\n"
    assert "add --yes" in says("jobs", "drop", "r", "--whole-run", code=2).err
    assert reader(ledger).stats()["dead"] == 3
    says("jobs", "drop", "r/a/0", "--whole-run", code=2)
    assert says("jobs", "drop", "r", "--whole-run", "--yes", "--json").json["keys"] > 3
    assert not list(ledger.redis.scan_iter("rollq:{r}*"))

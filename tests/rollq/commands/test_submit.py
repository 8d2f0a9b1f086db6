"""`rollq submit`: nothing twice, nothing lost, and what it says."""

import json
import threading
import time

import pytest

from rollq import Client, cli
from rollq.commands import progress
from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.groups import drop_group, play_groups, take
from tests.rollq.samples import group, reader


def test_submitting_twice_is_submitting_once(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [*SUBMIT, "--size", "2", "--redis", redis_url, "--json"]
    assert cli.main(line) == 0
    first = json.loads(capsys.readouterr().out)
    assert first == {"run": "r", "groups": 4, "size": 2, "new": 8, "known": 0, "acked": 0, "sealed": False}
    assert cli.main(line) == 0
    assert json.loads(capsys.readouterr().out) == {**first, "new": 0, "known": 8}
    assert cli.main(["stats", "--run", "r", "--redis", redis_url, "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    wanted = (
        "submitted queued leased done dead groups_open groups_ready groups_held groups_acked groups_dropped delivered"
    )
    assert {*wanted.split(), "duplicates", "redelivered", "resubmitted", "fenced"} <= set(counts)
    assert (counts["submitted"], counts["queued"], counts["groups_open"], counts["resubmitted"]) == (8, 8, 4, 8)


def test_what_was_acknowledged_is_told_from_what_is_only_known(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*SUBMIT, "--size", "2", "--redis", redis_url]
    assert cli.main(line) == 0
    play_groups(ledger, "shop.train.0", "shop.train.2")
    assert cli.main(["pull", "--run", "r", "--groups", "1", "--redis", redis_url]) == 0
    capsys.readouterr()
    assert cli.main(line) == 0
    assert "4 groups of 2: 0 jobs submitted, 6 known already, 2 acknowledged already" in capsys.readouterr().out
    assert cli.main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["new"], found["known"], found["acked"]) == (0, 6, 2)
    with Client(redis_url, run="r") as client:  # without a source, each group is sent again
        done = client.submit(job for n in range(4) for job in group(f"g{n}"))
        again = client.submit(job for n in range(4) for job in group(f"g{n}"))
    assert (len(done.new), len(again.known), len(again.acked)) == (8, 8, 0)


def test_submit_names_the_next_steps(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    said = capsys.readouterr().out
    assert "rollq worker" in said
    assert "rollq pull --run r --groups 4" in said
    assert "--seal" in said
    assert cli.main(["stats", "--redis", redis_url]) == 0
    assert "r  4 submitted  4 queued" in capsys.readouterr().out
    assert cli.main(["stats", "--run", "r", "--redis", redis_url]) == 0
    assert "jobs      4 submitted   4 queued" in capsys.readouterr().out


def test_the_next_step_of_an_eval_run(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--set", "purpose=eval", "--redis", redis_url]) == 0
    assert "rollq pull --run r --groups 4 --purpose eval --out r.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["1", "3"])
def test_progress_does_not_count_a_refused_group(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)  # every state is said
    line = [*SUBMIT, "--size", size, "--redis", redis_url]
    assert cli.main([*line, "--tasks", "1"]) == 0
    capsys.readouterr()
    assert cli.main([*line, "--tasks", "0-3", "--set", "budget.max_turns=9"]) == 1
    said = [text for text in capsys.readouterr().err.splitlines() if "groups" in text]
    assert said == ["0/4  groups submitted, next shop.train.0", "1/4  groups submitted, next shop.train.1"]


def test_a_broker_that_takes_no_messages_is_a_warning(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLQ_BROKER_URL", "redis://me:hunter2@127.0.0.1:1/0")
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    said = capsys.readouterr()
    assert "4 jobs submitted" in said.out
    assert "rollq: warning: the broker takes no messages (OperationalError): the workers send" in said.err
    assert "hunter2" not in said.err


def test_budgets_on_the_line(redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-3", "--redis", redis_url]
    assert cli.main([*base, "--set", "max_failures.engine=8", "--set", "max_failures.env=3"]) == 0
    assert cli.main([*base, "--set", "max_failures.engine=8"]) == 0
    assert cli.main(base) == 0
    assert ledger.redis.hget(ledger.keys.meta, "budget:env") == b"3"
    capsys.readouterr()
    assert cli.main([*base, "--set", "max_failures.engine=9"]) == 2
    assert "run r has a budget of 8 failures of class engine, not 9" in capsys.readouterr().err


def test_spare_members_are_submitted_with_their_group(
    redis_url: str, ledger: Ledger, fails: Fails, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*SUBMIT, "--size", "2", "--set", "spare=1", "--redis", redis_url, "--json"]
    for new, known in ((12, 0), (0, 12)):
        assert cli.main(line) == 0
        said = capsys.readouterr()
        assert "spare 1" in said.err
        found = json.loads(said.out)
        assert (found["size"], found["new"], found["known"]) == (2, new, known)
    play_groups(ledger, "shop.train.0")
    assert (reader(ledger).stats()["surplus"], reader(ledger).stats()["groups_ready"]) == (1, 1)
    said = fails(*SUBMIT, "--set", "purpose=eval", "--set", "spare=1", "--redis", redis_url)
    assert "spare is 1, and an evaluation has none" in said


def test_submit_refills_and_then_seals(redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-1", "--size", "2", "--redis", redis_url, "--json"]
    assert cli.main(line) == 0
    drop_group(ledger, "shop.train.0")
    play_groups(ledger, "shop.train.1")

    def work() -> None:
        while reader(ledger).job("r/shop.train.0.r1/1") is None:
            time.sleep(0.01)
        play_groups(ledger, "shop.train.0.r1")

    worker = threading.Thread(target=work)
    worker.start()
    capsys.readouterr()
    assert cli.main([*line, "--set", "refill=2", "--seal"]) == 0
    worker.join(30)
    found = json.loads(capsys.readouterr().out)
    assert (found["new"], found["known"], found["refilled"], found["sealed"]) == (0, 4, 2, True)
    assert [taken.id for taken in take(ledger, 3, "t")] == ["shop.train.1", "shop.train.0.r1"]


def test_jobs_ask_for_routed_experts(
    redis_url: str, ledger: Ledger, fails: Fails, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*SUBMIT, "--set", "routed_experts=48x8x128", "--redis", redis_url]
    assert cli.main(line) == 0
    assert "routed_experts.layers 48, routed_experts.top_k 8, routed_experts.experts 128" in capsys.readouterr().err
    state = reader(ledger).job("r/shop.train.0/0")
    assert state is not None and state.job is not None
    assert state.job.routed_experts == {"layers": 48, "top_k": 8, "experts": 128}
    assert "and this is an evaluation" in fails(*line, "--set", "purpose=eval")

"""`rollq submit`: nothing twice, nothing lost, and what it says."""

import threading
import time

import pytest

from rollq.commands import progress
from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Says
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.groups import drop_group, play_groups, take
from tests.rollq.samples import reader


def test_submitting_twice_is_submitting_once(says: Says) -> None:
    line = [*SUBMIT, "--size", "2", "--json"]
    first = says(*line).json
    assert first == {
        "run": "r",
        "groups": 4,
        "size": 2,
        "new": 8,
        "known": 0,
        "acked": 0,
        "sealed": False,
    }
    assert says(*line).json == {**first, "new": 0, "known": 8}
    counts = says("stats", "--run", "r", "--json").json
    assert (
        counts["submitted"],
        counts["queued"],
        counts["groups_open"],
        counts["resubmitted"],
    ) == (8, 8, 4, 8)


def test_what_was_acknowledged_is_told_from_what_is_only_known(ledger: Ledger, says: Says) -> None:
    line = [*SUBMIT, "--size", "2"]
    says(*line)
    play_groups(ledger, "shop.train.0", "shop.train.2")
    says("pull", "--run", "r", "--groups", "1")
    assert (
        "4 groups of 2: 0 jobs submitted, 6 known already, 2 acknowledged already"
        in says(*line).out
    )
    found = says(*line, "--json").json
    assert (found["new"], found["known"], found["acked"]) == (0, 6, 2)


def test_submit_names_the_next_steps(says: Says) -> None:
    said = says(*SUBMIT).out
    assert "rollq worker" in said and "rollq pull --run r --groups 4" in said and "--seal" in said
    assert "r  4 submitted  4 queued" in says("stats").out
    assert "jobs      4 submitted   4 queued" in says("stats", "--run", "r").out
    again = says(*SUBMIT[:2], "e", *SUBMIT[3:], "--set", "purpose=eval").out
    assert "rollq pull --run e --groups 4 --purpose eval --out e.jsonl" in again


@pytest.mark.parametrize("size", ["1", "3"])
def test_progress_does_not_count_a_refused_group(
    says: Says, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)  # every state is said
    line = [*SUBMIT, "--size", size]
    says(*line, "--tasks", "1")
    err = says(*line, "--tasks", "0-3", "--set", "budget.max_turns=9", code=1).err
    said = [text for text in err.splitlines() if "groups" in text]
    assert said == [
        "0/4  groups submitted, next shop.train.0",
        "1/4  groups submitted, next shop.train.1",
    ]


def test_a_broker_that_takes_no_messages_is_a_warning(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLQ_BROKER_URL", "redis://me:hunter2@127.0.0.1:1/0")
    said = says(*SUBMIT)
    assert "4 jobs submitted" in said.out and "hunter2" not in said.err
    assert (
        "rollq: warning: the broker takes no messages (OperationalError): the workers send"
        in said.err
    )


def test_budgets_on_the_line(ledger: Ledger, says: Says) -> None:
    base = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-3"]
    says(*base, "--set", "max_failures.engine=8", "--set", "max_failures.env=3")
    says(*base, "--set", "max_failures.engine=8")
    says(*base)
    assert ledger.redis.hget(ledger.keys.meta, "budget:env") == b"3"
    refused = says(*base, "--set", "max_failures.engine=9", code=2).err
    assert "run r has a budget of 8 failures of class engine, not 9" in refused


def test_submit_refills_and_then_seals(ledger: Ledger, says: Says) -> None:
    line = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-1", "--size", "2", "--json"]
    says(*line)
    drop_group(ledger, "shop.train.0")
    play_groups(ledger, "shop.train.1")

    def work() -> None:
        while reader(ledger).job("r/shop.train.0.r1/1") is None:
            time.sleep(0.01)
        play_groups(ledger, "shop.train.0.r1")

    worker = threading.Thread(target=work)
    worker.start()
    found = says(*line, "--set", "refill=2", "--seal").json
    worker.join(30)
    assert (found["new"], found["known"], found["refilled"], found["sealed"]) == (0, 4, 2, True)
    assert [taken.id for taken in take(ledger, 3, "t")] == ["shop.train.1", "shop.train.0.r1"]


def test_a_lost_seal_comes_back_with_the_same_line(ledger: Ledger, says: Says) -> None:
    says(*SUBMIT, "--seal")
    ledger.redis.hdel(ledger.keys.meta, "sealed")
    says(*SUBMIT, "--seal")
    assert reader(ledger).standing().sealed


def test_a_redis_that_forgets_is_warned_of_in_one_line(says: Says) -> None:
    warnings = [line for line in says(*SUBMIT).err.splitlines() if "warning" in line]
    assert warnings == [
        "rollq: warning: Redis forgets everything when it restarts: start it with --appendonly yes"
    ]

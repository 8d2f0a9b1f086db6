"""A few of the rollbacks (`python -m tests.rollback` has all), and that the harness would see what
goes wrong.
"""

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from rollq import Client
from rollq.events import Event
from rollq.ledger import scripts
from rollq.trajectory import Trajectory
from tests.rollback.actors import group, mixed, next_event
from tests.rollback.history import Cut, Outcome, play
from tests.rollback.redis_file import read_records

GAP = "source ~= '' and cursor_groups > stored_groups + 1"
"""The condition by which a submission sees that Redis has lost groups before it."""


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_and_nothing_is_mixed(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    played: list[Outcome] = []
    for number, step in enumerate((40, 90, 140, 190, 400)):
        cut = Cut(step, records=(1, 4, 20, 2, 12)[number], part=rng.choice((0.0, 0.5, 0.99)))
        again = [Cut(step + 30, records=3, part=0.5)] if number % 2 else []
        played.append(play(tmp_path / str(number), seed, [cut, *again]))
    assert [outcome for outcome in played if outcome.wrong] == []
    lost = {kind for outcome in played for kind in outcome.lost}
    assert lost >= {"claim", "append", "complete"}, "the cuts fell beside what matters"


def test_a_rollback_to_nothing(tmp_path: Path) -> None:
    outcome = play(tmp_path, 0, [Cut(120, records=10_000)])
    assert outcome.wrong == []
    assert {"submit", "claim", "ack"} <= set(outcome.lost)


def test_a_ledger_that_overlooks_a_gap_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = scripts.source

    def careless(name: str) -> tuple[str, str]:
        text, sha = plain(name)
        without = text.replace(GAP, "false")
        assert (without != text) == (name == "submit")
        return without, sha if without == text else hashlib.sha1(without.encode()).hexdigest()

    monkeypatch.setattr(scripts, "source", careless)
    monkeypatch.setattr("tests.rollback.history.SETTLE_S", 5.0)
    outcomes = [play(tmp_path / str(step), 1, [Cut(step, records=14)]) for step in range(12, 60, 8)]
    assert any("does not end" in why for outcome in outcomes for why in outcome.wrong)


def test_tokens_of_two_attempts_are_seen() -> None:
    job = group(0, "a")[0]
    chains: dict[int, list[Event]] = {1: [], 2: []}
    for writer, events in chains.items():
        while len(events) < 6:
            events.append(next_event(job, events, writer))
    resumed = chains[1][:3]
    while len(resumed) < 6:
        resumed.append(next_event(job, resumed, 2))

    def of(events: list[Event]) -> str:
        return mixed(Trajectory(job=job, header=None, events=events))  # type: ignore[arg-type]

    assert [of(chains[1]), of(resumed)] == ["", ""]
    assert "writer 2 was not written behind" in of([*chains[1][:3], *chains[2][3:]])


def test_a_script_is_one_record() -> None:
    def command(*words: str) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(
            b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words
        )

    taken = [command("MULTI"), command("SADD", "rollq:{r}:hold:t", "g"), command("EXEC")]
    alone = command("RPUSH", "rollq:{r}:journal:r/g/0", "blob")
    records = list(read_records(command("SELECT", "0") + b"".join(taken) + alone))
    assert [record.kind for record in records] == ["take", "append"]
    assert records[1].end - records[1].start == len(alone)


def test_a_producer_that_fails_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Client.submit

    def failing(client: Client, jobs: Any, **options: Any) -> Any:
        if options:
            monkeypatch.undo()
            raise OSError("it broke")
        return submit(client, jobs, **options)

    monkeypatch.setattr(Client, "submit", failing)
    assert play(tmp_path, 0, []).wrong == ["OSError: it broke"]

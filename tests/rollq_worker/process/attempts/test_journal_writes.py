"""What is journaled is a prefix of what the attempt recorded, and whole at its end: with two
threads that write, with a Redis that forgets, and when the process is killed.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollq.errors import FailureClass, Fenced
from rollq.events import Event, Finish, Observed
from rollq.job import History
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim
from rollq.token_stats import TokenStats
from rollq.trajectory import Header, Trajectory
from rollq.wire.codec import encode_header
from rollq.wire.events import decode_event, encode_event
from rollq_worker.fakes import FakeEngine, FakeUser
from rollq_worker.process.attempts import attempt as attempt_module
from rollq_worker.process.attempts import leases as leases_module
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.leases import Leases
from rollq_worker.protocols import Generated
from tests.rollq.samples import closed, observed, prompt, reader, sampled
from tests.rollq_worker.episode.episodes import play_with_fakes
from tests.rollq_worker.process.ledgers import claim

EPISODES, AT_ONCE = 64, 16
HEADER = Header(attempt=1)
LINES = ("hello", "go on", "more")
END = ("complete", "complete", "fail", "release", "abandon", "killed")


class Episode:
    """One attempt, what it recorded, and what befell it."""

    def __init__(self, ledger: Ledger, attempt: Attempt, seed: int, forgetful: bool) -> None:
        self.ledger, self.attempt, self.id = ledger, attempt, attempt.job.id
        self.random = random.Random(seed)
        self.recorded: list[bytes] = []
        self.events: list[Event] = []
        self.turn_ended = 0
        """Number of entries up to the last turn that has ended."""
        self.forgetful = forgetful
        self.forgotten = False
        """Whether Redis lost the journal's tail, or the lease."""
        self.how = self.random.choice(END)

    def play(self) -> None:
        self.recorded.append(encode_header(HEADER, self.id))
        self.attempt.open(HEADER)
        self.append(prompt())
        turns = self.random.randint(1, 6)
        for turn in range(turns):
            for _ in range(self.random.choice([0, 0, 0, 1, 2])):
                self.append(sampled(turn, finish=Finish.ABORT))
            self.append(sampled(turn))
            time.sleep(self.random.choice([0.0, 0.0, 0.001, 0.02]))
            if self.how == "killed" and turn == turns - 1:
                return
            self.append(observed(turn))
            self.turn_ended = len(self.recorded)
        self.append(sampled(turns))
        self.end()

    def append(self, event: Event) -> None:
        self.recorded.append(encode_event(event, self.id))
        self.events.append(event)
        if self.forgetful:
            self.forget()
        self.attempt.append(event)

    def forget(self) -> None:
        """Redis loses the journal's tail now and then, and the lease more rarely."""
        chance = self.random.random()
        if chance < 0.1:
            self.ledger.redis.ltrim(self.ledger.keys.journal(self.id), 0, self.random.randint(0, 8))
        elif chance < 0.12:
            self.ledger.redis.zrem(self.ledger.keys.leased, f"{self.id}#{self.attempt.lease}")
        self.forgotten |= chance < 0.12
        self.check()

    def end(self) -> None:
        match self.how:
            case "complete":
                last = closed()
                self.recorded.append(encode_event(last, self.id))
                of = Trajectory(job=self.attempt.job, header=HEADER, events=[*self.events, last])
                self.attempt.complete(of, TokenStats())
            case "release":
                self.attempt.release()
            case how:
                getattr(self.attempt, how)(FailureClass.ENGINE, "broke")

    def check(self) -> int:
        """The journal's length. It is a prefix of what was recorded."""
        stored = self.ledger.journal(self.id)
        assert stored == self.recorded[: len(stored)]
        return len(stored)


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leases]:
    monkeypatch.setattr(attempt_module, "HELD_BACK_S", 0.004)
    monkeypatch.setattr(leases_module, "LOOK_EVERY_S", 0.001)
    found = Leases(threading.Event())
    found.start()
    yield found
    found.stop()
    found._late_writer.join(60)


@pytest.mark.parametrize("forgetful", [False, True], ids=["reliable", "forgetful"])
@pytest.mark.parametrize("seed", range(2))
def test_a_journal_is_a_prefix_of_what_was_recorded(
    ledger: Ledger, leases: Leases, seed: int, forgetful: bool
) -> None:
    def play(number: int) -> Episode:
        with leases.hold(ledger, claim(ledger, number)) as attempt:
            episode = Episode(ledger, attempt, seed * EPISODES + number, forgetful)
            try:
                episode.play()
            except Fenced:
                assert episode.forgotten
                episode.how = "fenced"
        return episode

    with ThreadPoolExecutor(AT_ONCE) as pool:
        episodes = list(pool.map(play, range(EPISODES)))
    for episode in episodes:
        length = episode.check()
        if episode.how == "complete" or not (episode.forgotten or episode.how == "killed"):
            assert length == len(episode.recorded), episode.how
        elif not episode.forgotten:
            assert length >= episode.turn_ended
    done = sum(episode.how == "complete" for episode in episodes)
    for found in reader(ledger).read([e.id for e in episodes if e.how == "complete"]):
        assert isinstance(found, Trajectory)
    assert reader(ledger).stats()["done"] == done > 0
    assert forgetful == any(episode.how == "fenced" for episode in episodes)
    assert forgetful == any(episode.how == "complete" and episode.forgotten for episode in episodes)


class Killed(BaseException):
    """The process ends here."""


class DyingEngine(FakeEngine):
    """The process is killed while its n-th request is under way."""

    def __init__(self, texts: Sequence[str], dies_at: int) -> None:
        super().__init__(texts)
        self.dies_at = dies_at

    def generate(self, *args: Any, **options: Any) -> Generated:
        if len(self.requests) == self.dies_at:
            raise Killed
        return super().generate(*args, **options)


@pytest.mark.parametrize("history", list(History))
@pytest.mark.parametrize("turn", range(4))
def test_a_kill_costs_the_turn_in_flight(ledger: Ledger, turn: int, history: History) -> None:
    texts = ["hello", '{"name": "add", "arguments": {"a": 1}}', "and now?", "bye"]
    whole = play_with_fakes(*texts, user=FakeUser(LINES), history=history)
    held = Leases(threading.Event())
    with held.hold(ledger, claim(ledger)) as first, pytest.raises(Killed):
        first.open(HEADER)
        engine = DyingEngine(texts, turn)
        play_with_fakes(journal=first, engine=engine, user=FakeUser(LINES), history=history)
    ledger.redis.zrem(ledger.keys.leased, f"{first.job.id}#{first.lease}")  # it expires
    ledger.redis.hset(ledger.keys.job(first.job.id), "state", "queued")
    again = ledger.claim(first.job.id, worker="w", token="again")
    assert isinstance(again, Claim)
    with held.hold(ledger, again) as second:
        recorded: list[Event] = []
        if again.journal:
            recorded = second.resume()[1]
        else:
            second.open(HEADER)
        assert sum(isinstance(event, Observed) for event in recorded) == turn
        engine = FakeEngine(texts[turn:])
        played = play_with_fakes(
            journal=second, engine=engine, user=FakeUser(LINES), history=history, recorded=recorded
        )
        second.complete(played, TokenStats())
    assert (played.tokens, played.reward) == (whole.tokens, whole.reward)
    assert len(engine.requests) == len(texts) - turn
    kinds = [type(decode_event(blob, first.job.id)) for blob in ledger.journal(first.job.id)[1:]]
    assert kinds == [type(event) for event in whole.events]

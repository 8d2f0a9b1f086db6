"""The index of a run that is read bit by bit equals one that is read afresh, wherever its jobs go."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollq.errors import FailureClass, LedgerError, SettingsError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.viewer import live_run
from rollq.viewer.live_run import LiveRun
from rollq.viewer.redis_place import RedisPlace
from rollq.viewer.rows import Row
from tests.rollq.samples import claim, events, group, journal, play, reader


@pytest.fixture(autouse=True)
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "READ_EVERY_S", -1.0)


def rows(run: LiveRun) -> dict[str, Row]:
    return dict(run.listing().rows)


def kill(ledger: Ledger, job_id: str) -> None:
    lease = claim(ledger, job_id, f"kill-{job_id}").lease
    ledger.fail(job_id, lease, FailureClass.JOB, "Traceback (most recent call last):\nValueError: no", final=True)


def test_a_job_from_queued_to_acknowledged(ledger: Ledger) -> None:
    ledger.submit(group())
    run = LiveRun(reader(ledger))
    assert [row.state for row in rows(run).values()] == ["queued", "queued"]
    journal(ledger, "r/g/0", claim(ledger, "r/g/0").lease, events()[:3])
    playing = rows(run)["r/g/0"]
    assert (playing.state, playing.turns, playing.attempt, playing.env) == ("leased", 1, 1, "shop")
    play(ledger, "r/g/1", 0.5)
    done = rows(run)["r/g/1"]
    assert (done.outcome, done.reward, done.turns, done.sampled, done.why) == ("done", 0.5, 2, 4, "why it is red")
    assert run.listing().groups == {"g": "open"}


def test_rows_are_in_the_order_of_submission_wherever_their_groups_are(ledger: Ledger) -> None:
    for name in "cab":
        ledger.submit(group(name, size=1))
    play(ledger, "r/c/0")  # ready, while others are open
    assert list(rows(LiveRun(reader(ledger)))) == ["r/c/0", "r/a/0", "r/b/0"]


def test_an_acknowledged_group_keeps_its_rows(ledger: Ledger) -> None:
    ledger.submit(group())
    run = LiveRun(reader(ledger))
    for sample in range(2):
        play(ledger, f"r/g/{sample}")
    assert {row.outcome for row in rows(run).values()} == {"done"}
    deliveries = Deliveries(ledger.redis, "r")
    deliveries.take(1, "session/1")
    assert run.listing().groups == {"g": "held"}
    deliveries.ack("session/1")
    assert [(row.state, row.reward) for row in rows(run).values()] == [("acked", 1.0)] * 2
    assert run.listing().groups == {"g": "acked"}


def test_a_dead_job_has_its_class_and_its_exception_and_may_be_played_again(ledger: Ledger) -> None:
    ledger.submit(group())
    run, place = LiveRun(reader(ledger)), RedisPlace(ledger.redis, "redis://here")
    kill(ledger, "r/g/0")
    dead = rows(run)["r/g/0"]
    assert (dead.state, dead.failure, dead.why) == ("dead", "job", "ValueError: no")
    page = place.rollout("r", "r/g/0", None)
    assert (page["stop"], page["reason_line"], page["state"]) == ("failed", "ValueError: no", "dead")
    place.requeue("r", "r/g/0")
    assert rows(run)["r/g/0"].state == "queued"
    with pytest.raises(LedgerError, match="cannot be requeued"):
        place.requeue("r", "r/g/0")


def test_the_turn_in_which_an_attempt_died_is_named(ledger: Ledger) -> None:
    ledger.submit(group())
    lease = claim(ledger, "r/g/0").lease
    journal(ledger, "r/g/0", lease, events()[:4])
    ledger.fail("r/g/0", lease, FailureClass.JOB, "no", final=True)
    page = RedisPlace(ledger.redis, "redis://here").rollout("r", "r/g/0", None)
    assert page["failed_calls"] == [{"turn": 1, "what": "the attempt failed in this turn", "text": "hm"}]


def test_a_conversation_grows_while_it_is_played(ledger: Ledger) -> None:
    ledger.submit(group())
    place = RedisPlace(ledger.redis, "redis://here")
    lease = claim(ledger, "r/g/0").lease
    journal(ledger, "r/g/0", lease, events()[:3])
    page = place.rollout("r", "r/g/0", None)
    assert (page["running"], page["state"], page["turns"]) == (True, "leased", 1)
    assert [entry["role"] for entry in page["entries"]] == ["system", "user", "assistant", "tool"]
    assert [time[0] for time in page["times"]] == ["engine", "environment"]


def test_a_run_that_is_deleted_has_no_rows(ledger: Ledger) -> None:
    ledger.submit(group())
    run = LiveRun(reader(ledger))
    assert len(rows(run)) == 2
    DeadLetters(ledger.redis, "r").forget_run()
    assert rows(run) == {}


def test_a_damaged_record_costs_its_own_row(ledger: Ledger) -> None:
    ledger.submit(group())
    ledger.redis.hset(ledger.keys.job("r/g/0"), "attempt", "many")
    found = rows(LiveRun(reader(ledger)))
    assert [found[f"r/g/{n}"].state for n in range(2)] == ["unreadable", "queued"]


def test_an_unknown_run_is_named(ledger: Ledger) -> None:
    with pytest.raises(SettingsError, match="no run 'other'"):
        RedisPlace(ledger.redis, "redis://here").listing("other")


steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "claim", "play", "kill", "requeue", "take", "ack", "look"]), st.integers(0, 5)
    ),
    max_size=14,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_read_bit_by_bit_it_is_what_a_fresh_one_reads(ledger: Ledger, history: list[tuple[str, int]]) -> None:
    ledger.redis.flushall()
    ledger.submit(group("g0"))
    run = LiveRun(reader(ledger))
    for step, (what, number) in enumerate(history):
        act(ledger, what, number, step)
        if what == "look":
            rows(run)
    fresh = rows(LiveRun(reader(ledger)))
    assert {key: row for key, row in rows(run).items() if row.state != "acked"} == fresh


def act(ledger: Ledger, what: str, number: int, step: int) -> None:
    job_id = f"r/g{number // 2}/{number % 2}"
    state = reader(ledger).job(job_id)
    free = state is not None and state.state == "queued" and state.not_before == 0
    if what == "submit" and state is None:
        ledger.submit(group(f"g{number // 2}"))
    elif what == "claim" and free:
        journal(ledger, job_id, claim(ledger, job_id, f"claim-{step}").lease, events()[:3])
    elif what == "play" and free:
        play(ledger, job_id, step / 10)
    elif what == "kill" and free:
        kill(ledger, job_id)
    elif what == "requeue" and state is not None and state.state == "dead":
        try:
            DeadLetters(ledger.redis, "r").requeue(job_id)
        except LedgerError:
            return
    elif what == "take":
        Deliveries(ledger.redis, "r").take(1, f"s/{step}")
    elif what == "ack":
        for name in ledger.redis.zrange(f"{ledger.keys.prefix}held:train", 0, -1):
            token = ledger.redis.hget(ledger.keys.group(name.decode()), "token").decode()
            Deliveries(ledger.redis, "r").ack(token, [name.decode()])

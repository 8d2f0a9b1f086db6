"""The index of a run that is read bit by bit equals one that is read afresh, wherever
its jobs go.
"""

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollq import Client
from rollq.errors import FailureClass, LedgerError
from rollq.ledger.constants import STALE
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq.snapshot.rollouts import RolloutReader
from rollq.wire.events import encode_event
from rollq_view import live_run
from rollq_view.live_run import LiveRun
from rollq_view.redis_place import RedisPlace
from rollq_view.rows import Row
from tests.rollq.samples import claim, events, group, journal, play, reader


@pytest.fixture(autouse=True)
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "READ_EVERY_S", -1.0)


def live(ledger: Ledger) -> LiveRun:
    return LiveRun(RolloutReader(ledger.redis, "r"), "redis://here")


def rows(run: LiveRun) -> dict[str, Row]:
    return dict(run.listing().rows)


def kill(ledger: Ledger, job_id: str) -> None:
    reason = "Traceback (most recent call last):\nValueError: no"
    for number in range(2):
        lease = claim(ledger, job_id, f"kill-{job_id}-{number}").lease
        ledger.fail(job_id, lease, FailureClass.JOB, reason)


def test_an_earlier_failure_is_no_reason_for_a_grade(ledger: Ledger) -> None:
    ledger.submit(group())
    ledger.fail("r/g/0", claim(ledger, "r/g/0").lease, FailureClass.ENGINE, "connection refused")
    place = RedisPlace(ledger.redis, "redis://here")
    assert place.rollout("r", "r/g/0", None)["reason"] == "connection refused"
    ledger.redis.hset(ledger.keys.job("r/g/0"), "not_before", 0)
    play(ledger, "r/g/0")
    page = place.rollout("r", "r/g/0", None)
    assert (page["reason"], page["failures"], page["reward"]) == ("", {"engine": 1}, 1.0)


def test_a_job_from_queued_to_acknowledged(ledger: Ledger) -> None:
    ledger.submit(group())
    run = live(ledger)
    assert [row.state for row in rows(run).values()] == ["queued", "queued"]
    journal(ledger, "r/g/0", claim(ledger, "r/g/0").lease, events()[:3])
    playing = rows(run)["r/g/0"]
    assert (playing.state, playing.turns, playing.attempt, playing.env) == ("leased", 1, 1, "shop")
    play(ledger, "r/g/1", 0.5)
    done = rows(run)["r/g/1"]
    assert (done.outcome, done.reward, done.turns, done.sampled, done.why) == (
        "done",
        0.5,
        2,
        4,
        "why it is red",
    )
    assert run.listing().groups == {"g": "open"}


def test_rows_are_in_the_order_of_submission_wherever_their_groups_are(ledger: Ledger) -> None:
    for name in "cab":
        ledger.submit(group(name, size=1))
    play(ledger, "r/c/0")  # ready, while others are open
    assert list(rows(live(ledger))) == ["r/c/0", "r/a/0", "r/b/0"]


def test_an_acknowledged_group_keeps_its_rows(ledger: Ledger) -> None:
    ledger.submit(group())
    run = live(ledger)
    for sample in range(2):
        play(ledger, f"r/g/{sample}")
    assert {row.outcome for row in rows(run).values()} == {"done"}
    deliveries = Deliveries(ledger.redis, "r")
    deliveries.take(1, "session/1")
    assert run.listing().groups == {"g": "held"}
    deliveries.ack("session/1")
    assert [(row.state, row.reward) for row in rows(run).values()] == [("acked", 1.0)] * 2
    assert run.listing().groups == {"g": "acked"}


def test_what_a_trainer_acknowledges_is_counted_as_stats_counts_it(ledger: Ledger) -> None:
    """Groups that leave between two looks, and a page that is opened only afterwards."""
    run, deliveries = live(ledger), Deliveries(ledger.redis, "r")
    for name in ("a", "b", "c"):
        ledger.submit(group(name))
    lease = claim(ledger, "r/b/0").lease
    index = journal(ledger, "r/b/0", lease, events()[:5])
    playing = rows(run)["r/b/0"]
    assert (playing.state, playing.turns) == ("leased", 2)
    end = [encode_event(events()[5], "r/b/0")]
    ledger.complete("r/b/0", lease, index, end, turns=2, sampled_tokens=4, total_tokens=11)
    kill(ledger, "r/a/1")
    for job_id, reward in (("r/a/0", 0.25), ("r/b/1", 1.0), ("r/c/0", 1.0), ("r/c/1", 1.0)):
        play(ledger, job_id, reward)
    deliveries.take(2, "session/1")
    deliveries.ack("session/1", ["b"])
    deliveries.skip("session/1", "c", "dull")
    found = rows(run)
    assert [(found[f"r/b/{n}"].state, found[f"r/b/{n}"].turns) for n in range(2)] == [
        ("acked", None)
    ] * 2
    for looked in (run, live(ledger)):
        facts, stats = looked.listing().facts, reader(ledger).stats()
        assert (
            facts["states"]
            == {name: stats[name] for name in ("done", "dead")}
            == {"done": 5, "dead": 1}
        )
        assert facts["outcomes"] == {"done": 5, "dead": 1}
        assert (facts["rollouts"], facts["groups"], facts["acked"], facts["graded"]) == (6, 3, 4, 5)
        assert facts["reward_mean"] == stats["reward_mean"] == 4.25 / 5
        said = (
            "No longer in Redis: 2 acknowledged (see your exported file), 2 skipped by the trainer."
        )
        assert (facts["gone"], facts["trouble"]) == (said, "")


def test_a_group_that_is_dropped_between_two_looks_has_its_end(ledger: Ledger) -> None:
    ledger.submit(group())
    run = live(ledger)
    assert rows(run)["r/g/0"].state == "queued"
    play(ledger, "r/g/0")
    kill(ledger, "r/g/1")
    DeadLetters(ledger.redis, "r").discard("r/g/1")
    assert {row.state for row in rows(run).values()} == {"done", "dead"}


def test_without_redis_the_page_has_what_was_known_and_why(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(connect(redis_url, patience_s=0), "r")  # as the command connects
    ledger.submit(group())
    run, never = live(ledger), live(ledger)
    place = RedisPlace(ledger.redis, "redis://here")
    before, _ = run.listing(), place.runs()

    def away(*_: object, **__: object) -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr("redis.Connection.send_packed_command", away)
    after = run.listing()
    assert (after.rows, after.facts["states"]) == (before.rows, {"queued": 2})
    assert after.facts["trouble"] == "Redis at redis://here does not answer: refused"
    assert after.facts["age_s"] > before.facts["age_s"] == 0.0
    [shown] = place.runs()
    assert (
        shown["queued"] == 2
        and "read before: Redis at redis://here does not answer: ref" in shown["why"]
    )
    for ask in (never.listing, RedisPlace(ledger.redis, "redis://here").runs):
        with pytest.raises(LedgerError, match="does not answer"):
            ask()


def test_a_dead_job_has_its_class_and_its_exception_and_may_be_played_again(
    redis_url: str, ledger: Ledger
) -> None:
    ledger.submit(group())
    run, place = (
        live(ledger),
        RedisPlace(ledger.redis, "redis://here", lambda run: Client(redis_url, run=run)),
    )
    kill(ledger, "r/g/0")
    dead = rows(run)["r/g/0"]
    assert (dead.state, dead.failure, dead.why) == ("dead", "job", "ValueError: no")
    page = place.rollout("r", "r/g/0", None)
    assert (page["stop"], page["reason_line"], page["state"]) == (
        "failed",
        "ValueError: no",
        "dead",
    )
    place.requeue("r", "r/g/0")
    assert rows(run)["r/g/0"].state == "queued"
    with pytest.raises(LedgerError, match="cannot be requeued"):
        place.requeue("r", "r/g/0")


def test_the_turn_in_which_an_attempt_died_is_named(ledger: Ledger) -> None:
    ledger.pin_budgets({FailureClass.JOB: 1})
    ledger.submit(group())
    lease = claim(ledger, "r/g/0").lease
    journal(ledger, "r/g/0", lease, events()[:4])
    ledger.fail("r/g/0", lease, FailureClass.JOB, "no")
    page = RedisPlace(ledger.redis, "redis://here").rollout("r", "r/g/0", None)
    assert page["failed_calls"] == [
        {"turn": 1, "what": "the attempt failed in this turn", "text": "hm"}
    ]


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
    run = live(ledger)
    assert len(rows(run)) == 2
    DeadLetters(ledger.redis, "r").forget_run()
    assert rows(run) == {}


def test_a_run_that_is_deleted_and_submitted_again_is_read_again(ledger: Ledger) -> None:
    run = live(ledger)
    for reward in (1.0, 0.0):
        ledger.submit(group(labels={"reward": reward}))
        play(ledger, "r/g/0", reward)
        assert rows(run)["r/g/0"].reward == reward
        assert rows(run) == rows(live(ledger))
        DeadLetters(ledger.redis, "r").forget_run()


def test_a_damaged_record_costs_its_own_row(ledger: Ledger) -> None:
    ledger.submit(group())
    ledger.redis.hset(ledger.keys.job("r/g/0"), "attempt", "many")
    found = rows(live(ledger))
    assert [found[f"r/g/{n}"].state for n in range(2)] == ["unreadable", "queued"]


def test_a_damaged_tally_costs_its_own_row(ledger: Ledger) -> None:
    ledger.submit(group())
    play(ledger, "r/g/0")
    ledger.redis.hset(ledger.keys.group("g"), "tally:0", "turns inf")
    found = rows(live(ledger))
    assert [found[f"r/g/{n}"].state for n in range(2)] == ["unreadable", "queued"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("size", "4294967296"), ("size", "-1"), ("size", "x"), ("spare", "9" * 5000)],
)
def test_a_damaged_group_costs_its_own_rows(ledger: Ledger, field: str, value: str) -> None:
    for name in "gh":
        ledger.submit(group(name))
    ledger.redis.hset(ledger.keys.group("g"), field, value)
    run = live(ledger)
    found = rows(run)
    assert [found[key].state for key in ("r/g/0", "r/h/0", "r/h/1")] == [
        "unreadable",
        "queued",
        "queued",
    ]
    assert (
        len(found) == 3
        and f"{ledger.keys.group('g')} has no readable {field}" in found["r/g/0"].why
    )
    ledger.redis.hset(ledger.keys.group("g"), mapping={"size": 2, "seq": 1, "spare": 0})
    assert {row.state for row in rows(run).values()} == {"queued"} and len(rows(run)) == 4


def test_what_is_no_job_among_the_dead_is_left_out(ledger: Ledger) -> None:
    ledger.submit(group())
    for member in ("x", "r/g", "r/g/x", "other/g/0", b"\xff/g/0", ""):
        ledger.redis.zadd(ledger.keys.dead, {member: 1.0})
    assert set(rows(live(ledger))) == {"r/g/0", "r/g/1"}


def test_a_groups_time_that_cannot_be_read_is_named(ledger: Ledger) -> None:
    ledger.submit(group())
    ledger.redis.hset(ledger.keys.group("g"), "at", "noon")
    with pytest.raises(LedgerError, match="its group's record cannot be read"):
        RedisPlace(ledger.redis, "redis://here").rollout("r", "r/g/0", None)


def test_a_redis_that_is_full_can_still_be_looked_at(ledger: Ledger) -> None:
    ledger.submit(group())
    play(ledger, "r/g/0")
    ledger.redis.config_set("maxmemory", 1)
    try:
        listing = live(ledger).listing()
        place = RedisPlace(ledger.redis, "redis://here")
        [totals], page = place.runs(), place.rollout("r", "r/g/0", None)
    finally:
        ledger.redis.config_set("maxmemory", 0)
    assert (listing.facts["trouble"], listing.facts["states"]) == ("", {"queued": 1, "done": 1})
    assert listing.rows["r/g/0"].reward == page["reward"] == totals["reward_mean"] == 1.0


def test_a_group_that_is_skipped_as_stale_between_two_looks(ledger: Ledger) -> None:
    ledger.submit(group())
    run = live(ledger)
    rows(run)
    for sample in range(2):
        play(ledger, f"r/g/{sample}")
    deliveries = Deliveries(ledger.redis, "r")
    deliveries.take(1, "t/0")
    deliveries.skip("t/0", "g", STALE)
    listing = run.listing()
    assert {row.state for row in listing.rows.values()} == {"done"} and listing.groups == {
        "g": "dropped"
    }


steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "claim", "play", "kill", "requeue", "take", "ack", "look"]),
        st.integers(0, 5),
    ),
    max_size=14,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
@example([("look", 0), ("kill", 0), ("requeue", 0), ("look", 0), ("kill", 0), ("requeue", 0)])
@example([("kill", 0), ("look", 0), ("requeue", 0), ("kill", 0)])
def test_read_bit_by_bit_it_is_what_a_fresh_one_reads(
    ledger: Ledger, history: list[tuple[str, int]]
) -> None:
    ledger.redis.flushall()
    ledger.submit(group("g0"))
    run = live(ledger)
    for step, (what, number) in enumerate(history):
        act(ledger, what, number, step)
        if what == "look":
            rows(run)
    fresh = rows(live(ledger))
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

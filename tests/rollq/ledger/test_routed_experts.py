"""Routed experts in Redis: parts in the order of the sampled events, kept by the lease, gone with the journal."""

from collections.abc import Callable

import pytest

from rollq import Client
from rollq.errors import ContractError, FailureClass, Fenced, JournalConflict
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Refusal
from rollq.ledger.routed_experts import encode_part, keep_parts, parts_kept
from rollq.trajectory_extras import ROUTED_EXPERTS
from rollq.wire.blob import SCHEMA
from rollq.wire.events import encode_event
from rollq.wire.routed_experts import join_parts
from tests.rollq.groups import ack, take
from tests.rollq.routed_experts import ASKED, parts
from tests.rollq.samples import claim, events, group, job, journal, play, reader, trajectory

JOB = "r/g/0"
BLOBS = [encode_part(JOB, part) for part in parts(events())]


def submit(ledger: Ledger) -> None:
    ledger.submit(group(routed_experts=ASKED))


def play_with_parts(ledger: Ledger, job_id: str = JOB) -> None:
    lease = claim(ledger, job_id).lease
    keep_parts(ledger.scripts, job_id, lease, 0, BLOBS)
    *some, end = events()
    index = journal(ledger, job_id, lease, some)
    ledger.complete(job_id, lease, index, [encode_event(end, job_id)], turns=2, sampled_tokens=4, total_tokens=11)


def test_a_consumer_gets_a_row_for_each_token(ledger: Ledger, redis_url: str) -> None:
    submit(ledger)
    play_with_parts(ledger)
    play_with_parts(ledger, "r/g/1")
    wanted = join_parts(trajectory(of=job(routed_experts=ASKED)), list(parts(events())))
    with Client(redis_url, run="r") as client:
        [batch] = [batch for _, batch in zip([0], client.batches(1, extras=[ROUTED_EXPERTS]), strict=False)]
    assert [t.extras for t in batch.trajectories] == [{ROUTED_EXPERTS: wanted}] * 2
    assert [t.extras for t in reader(ledger).read([JOB]) if not isinstance(t, ContractError)] == [{}]


def test_jobs_that_did_not_ask_have_none_beside_those_that_did(ledger: Ledger) -> None:
    submit(ledger)
    ledger.submit(group("plain", 1))
    play_with_parts(ledger)
    play(ledger, "r/plain/0")
    with_them, without = reader(ledger).read([JOB, "r/plain/0"], [ROUTED_EXPERTS])
    assert not isinstance(with_them, ContractError) and set(with_them.extras) == {ROUTED_EXPERTS}
    assert not isinstance(without, ContractError) and without.extras == {}


def test_a_later_attempt_writes_over_what_the_one_before_left(ledger: Ledger) -> None:
    submit(ledger)
    lease = claim(ledger, JOB).lease
    keep_parts(ledger.scripts, JOB, lease, 0, [b"a", b"b", b"c"])
    ledger.release(JOB, lease)
    with pytest.raises(Fenced, match="lease 1#token is lost, so its routed experts were refused"):
        keep_parts(ledger.scripts, JOB, lease, 3, [b"d"])
    second = claim(ledger, JOB, "other").lease
    keep_parts(ledger.scripts, JOB, second, 1, [b"B"])
    assert ledger.redis.lrange(ledger.keys.routed_experts(JOB), 0, -1) == [b"a", b"B"]
    keep_parts(ledger.scripts, JOB, second, 1, [])
    assert parts_kept(ledger.scripts, JOB) == 1
    keep_parts(ledger.scripts, JOB, second, 0, [])
    assert parts_kept(ledger.scripts, JOB) == 0


def test_parts_that_redis_lost_are_noticed_at_the_next_one(ledger: Ledger) -> None:
    submit(ledger)
    lease = claim(ledger, JOB).lease
    with pytest.raises(JournalConflict, match="Redis has 0 parts of the 1 that were written"):
        keep_parts(ledger.scripts, JOB, lease, 1, BLOBS)
    with pytest.raises(JournalConflict):
        keep_parts(ledger.scripts, JOB, lease, 1, [])
    assert parts_kept(ledger.scripts, JOB) == 0


def discard(ledger: Ledger) -> None:
    DeadLetters(ledger.redis, "r").cancel("r/g/1")
    DeadLetters(ledger.redis, "r").discard("r/g/1")


def acknowledge(ledger: Ledger) -> None:
    play_with_parts(ledger, "r/g/1")
    take(ledger, 1, "c/0")
    ack(ledger, "c/0")


def forget_run(ledger: Ledger) -> None:
    DeadLetters(ledger.redis, "r").forget_run()


@pytest.mark.parametrize("end", [acknowledge, discard, forget_run])
def test_they_go_with_the_journal(ledger: Ledger, end: Callable[[Ledger], None]) -> None:
    submit(ledger)
    play_with_parts(ledger)
    keys = [ledger.keys.routed_experts(JOB), ledger.keys.journal(JOB)]
    assert ledger.redis.exists(*keys) == 2
    end(ledger)
    assert not left(ledger)


def left(ledger: Ledger) -> list[bytes]:
    """Names of keys that hold parts or journals, of any job."""
    return [key for key in ledger.redis.scan_iter() if b":routed_experts:" in key or b":journal:" in key]


def test_those_of_spare_members_go_when_the_others_are_graded(ledger: Ledger) -> None:
    ledger.submit(group(spare=1, routed_experts=ASKED))
    slow = claim(ledger, "r/g/2").lease
    keep_parts(ledger.scripts, "r/g/2", slow, 0, BLOBS)
    journal(ledger, "r/g/2", slow, events()[:2])
    play_with_parts(ledger)
    play_with_parts(ledger, "r/g/1")
    assert len(left(ledger)) == 4
    with pytest.raises(Fenced):
        keep_parts(ledger.scripts, "r/g/2", slow, 2, BLOBS)
    take(ledger, 1, "c/0")
    ack(ledger, "c/0")
    assert not left(ledger)


def test_those_of_an_episode_that_starts_again_are_replaced(ledger: Ledger) -> None:
    ledger.submit(group(size=1, routed_experts=ASKED))
    lease = claim(ledger, JOB).lease
    keep_parts(ledger.scripts, JOB, lease, 0, [b"old"] * 3)
    journal(ledger, JOB, lease, events()[:2])
    ledger.fail(JOB, lease, FailureClass.ENV, "diverged")
    assert len(left(ledger)) == 2
    play_with_parts(ledger)  # the old journal is set aside
    assert ledger.redis.lrange(ledger.keys.routed_experts(JOB), 0, -1) == BLOBS
    take(ledger, 1, "c/0")
    ack(ledger, "c/0")
    assert not left(ledger)


def test_damage_costs_its_job_alone(ledger: Ledger) -> None:
    submit(ledger)
    play_with_parts(ledger)
    play_with_parts(ledger, "r/g/1")
    for damage, message in ((b"\x93\x02", "unreadable extra"), (None, "1 parts of 2 are there")):
        kept = ledger.keys.routed_experts(JOB)
        ledger.redis.rpop(kept)
        if damage is not None:
            ledger.redis.rpush(kept, damage)
        first, second = reader(ledger).read([JOB, "r/g/1"], [ROUTED_EXPERTS])
        assert isinstance(first, ContractError) and message in str(first) and "job r/g/0" in str(first)
        assert not isinstance(second, ContractError) and ROUTED_EXPERTS in second.extras
    ledger.redis.set(ledger.keys.routed_experts(JOB), "text")
    first, _ = reader(ledger).read([JOB, "r/g/1"], [ROUTED_EXPERTS])
    assert isinstance(first, ContractError) and "WRONGTYPE" in str(first)


def test_a_group_agrees_on_them(ledger: Ledger) -> None:
    with pytest.raises(ContractError, match="routed_experts, reward or template_kwargs differ within the group"):
        ledger.submit([job(0, routed_experts=ASKED), job(1)])


def test_a_reward_function_keeps_older_workers_away_too(ledger: Ledger) -> None:
    ledger.submit(group("a", routed_experts=ASKED, reward="judge", reward_args={"endpoint": "e"}))
    assert ledger.redis.hget(ledger.keys.group("a"), "schema") == f"{SCHEMA}+reward+reward_args+routed_experts".encode()
    found = ledger.claim("r/a/0", worker="w", token="t")
    assert not isinstance(found, Refusal)
    assert (found.job.reward, found.job.reward_args) == ("judge", {"endpoint": "e"})
    with pytest.raises(ContractError, match="reward must be the name"):
        job(0, reward_args={"endpoint": "e"})


def test_workers_that_cannot_record_them_are_kept_away_by_the_groups_schema(ledger: Ledger) -> None:
    tags = {"a": ({}, "+routed_experts"), "b": ({"spare": 1}, "+routed_experts+spare")}
    for name, (changes, tag) in tags.items():
        ledger.submit(group(name, routed_experts=ASKED, **changes))
        assert ledger.redis.hget(ledger.keys.group(name), "schema") == f"{SCHEMA}{tag}".encode()
        found = ledger.claim(f"r/{name}/0", worker="w", token="t")
        assert not isinstance(found, Refusal) and found.job.routed_experts == ASKED

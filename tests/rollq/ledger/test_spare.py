"""Over-provisioned groups: the first `size` graded members close the group, and the others end as surplus."""

import pytest

from rollq.errors import FailureClass, Fenced, LedgerError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Refusal, State
from rollq.wire.blob import SCHEMA
from rollq.wire.events import encode_event
from tests.rollq.groups import ack, deliveries, take
from tests.rollq.samples import claim, closed, events, group, journal, play


@pytest.fixture
def letters(ledger: Ledger) -> DeadLetters:
    return DeadLetters(ledger.redis, "r")


@pytest.fixture
def reader(ledger: Ledger) -> LedgerReader:
    return LedgerReader(ledger.redis, "r")


def kill(ledger: Ledger, job_id: str) -> None:
    ledger.fail(job_id, claim(ledger, job_id).lease, FailureClass.ENV, "broken", final=True)


def counts(reader: LedgerReader) -> tuple[int, ...]:
    stats = reader.stats()
    return tuple(stats[name] for name in ("submitted", "queued", "leased", "done", "dead", "surplus"))


def test_the_group_closes_with_its_first_graded_members(ledger: Ledger, reader: LedgerReader) -> None:
    ledger.submit(group("g", 2, spare=2))
    straggler = claim(ledger, "r/g/0")
    journal(ledger, "r/g/0", straggler.lease, events()[:4])
    play(ledger, "r/g/3")
    assert counts(reader) == (4, 2, 1, 1, 0, 0)
    play(ledger, "r/g/1")
    assert counts(reader) == (4, 0, 0, 2, 0, 2)
    (taken,) = take(ledger, 1, "t/0")
    assert (taken.size, taken.members, taken.dead) == (2, ["r/g/1", "r/g/3"], [])


def test_a_worker_that_knows_no_spare_members_leaves_the_group_to_others(ledger: Ledger) -> None:
    ledger.submit(group("g", 1, spare=1))
    # What it compares with its own schema. It would count the members wrongly.
    assert ledger.redis.hget(ledger.keys.group("g"), "schema") == f"{SCHEMA}+spare".encode()
    assert claim(ledger, "r/g/0").job.spare == 1


def test_surplus_members_are_fenced_and_free_their_memory_at_once(ledger: Ledger, reader: LedgerReader) -> None:
    ledger.submit(group("g", 1, spare=2))
    straggler = claim(ledger, "r/g/0")
    index = journal(ledger, "r/g/0", straggler.lease, events()[:4])
    play(ledger, "r/g/1")
    assert ledger.renew_leases([("r/g/0", straggler.lease)]) == [("r/g/0", straggler.lease)]
    with pytest.raises(Fenced):
        ledger.append("r/g/0", straggler.lease, index, [encode_event(closed(), "r/g/0")])
    with pytest.raises(Fenced):
        ledger.complete("r/g/0", straggler.lease, index, [encode_event(closed(), "r/g/0")])
    with pytest.raises(Fenced):
        ledger.fail("r/g/0", straggler.lease, FailureClass.ENGINE, "too late")
    with pytest.raises(Fenced):
        ledger.release("r/g/0", straggler.lease)
    assert ledger.redis.exists(ledger.keys.journal("r/g/0")) == 0
    late = ledger.claim("r/g/2", worker="w", token="late")
    assert isinstance(late, Refusal)
    assert late.reason == "surplus"
    assert ledger.reap() == []
    assert counts(reader) == (3, 0, 0, 1, 0, 2)


def test_surplus_members_are_no_dead_letters(ledger: Ledger, reader: LedgerReader, letters: DeadLetters) -> None:
    ledger.submit(group("g", 1, spare=1))
    play(ledger, "r/g/0")
    assert reader.dead() == []
    state = reader.job("r/g/1")
    assert state
    assert (state.state, state.job) == (State.SURPLUS, None)
    with pytest.raises(LedgerError, match="surplus"):
        reader.trajectory("r/g/1")
    for act in (letters.requeue, letters.cancel, letters.discard):
        with pytest.raises(LedgerError, match="its group had enough graded members"):
            act("r/g/1")


def test_a_dead_member_costs_a_spare_one(ledger: Ledger, reader: LedgerReader, letters: DeadLetters) -> None:
    ledger.submit(group("g", 2, spare=1))
    kill(ledger, "r/g/0")
    play(ledger, "r/g/1")
    play(ledger, "r/g/2")
    (taken,) = take(ledger, 1, "t/0")
    assert (taken.members, taken.dead) == (["r/g/1", "r/g/2"], ["r/g/0"])
    assert counts(reader) == (3, 0, 0, 2, 1, 0)
    with pytest.raises(LedgerError, match="its group is held without it"):
        letters.requeue("r/g/0")


def test_without_enough_members_left_min_viable_decides(ledger: Ledger, reader: LedgerReader) -> None:
    for name, viable in (("few", 1), ("all", 2)):
        ledger.submit(group(name, 2, spare=1, min_viable=viable))
        kill(ledger, f"r/{name}/0")
        kill(ledger, f"r/{name}/1")
        play(ledger, f"r/{name}/2")
    assert reader.group_states(["few", "all"]) == ["ready", "dropped"]
    (taken,) = take(ledger, 1, "t/0")
    assert (taken.size, taken.members) == (2, ["r/few/2"])


def test_a_dropped_group_comes_back_and_closes_when_it_is_full(
    ledger: Ledger, reader: LedgerReader, letters: DeadLetters
) -> None:
    ledger.submit(group("g", 2, spare=1))
    kill(ledger, "r/g/0")
    kill(ledger, "r/g/1")
    play(ledger, "r/g/2")
    letters.requeue("r/g/0")
    letters.requeue("r/g/1")
    play(ledger, "r/g/1")
    assert reader.group_states(["g"]) == ["ready"]
    assert counts(reader) == (3, 0, 0, 2, 0, 1)


def test_a_rejected_member_is_not_replaced_by_a_surplus_one(
    ledger: Ledger, reader: LedgerReader, letters: DeadLetters
) -> None:
    ledger.submit(group("g", 1, spare=1))
    play(ledger, "r/g/1")
    take(ledger, 1, "t/0")
    deliveries(ledger).reject("t/0", "r/g/1", "torn")
    assert reader.group_states(["g"]) == ["dropped"]
    letters.requeue("r/g/1")
    play(ledger, "r/g/1", reward=0.5)
    assert reader.group_states(["g"]) == ["ready"]
    assert counts(reader) == (2, 0, 0, 1, 0, 1)


def test_the_record_of_an_acknowledged_group_knows_its_surplus(ledger: Ledger, reader: LedgerReader) -> None:
    jobs = group("g", 1, spare=2)
    ledger.submit(jobs)
    kill(ledger, "r/g/2")
    play(ledger, "r/g/0")
    take(ledger, 1, "t/0")
    ack(ledger, "t/0", "g")
    found = [reader.job(job.id) for job in jobs]
    assert [state and state.state for state in found] == [State.DONE, State.SURPLUS, State.DEAD]
    assert ledger.submit(jobs).acked == [job.id for job in jobs]
    late = ledger.claim("r/g/1", worker="w", token="late")
    assert isinstance(late, Refusal)
    assert late.reason == "surplus"


def test_the_group_is_submitted_with_all_its_members(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="has 2 of 3 samples"):
        ledger.submit(group("g", 2, spare=1)[:2])

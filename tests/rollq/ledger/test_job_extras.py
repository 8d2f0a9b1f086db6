"""Arrays beside a job's journal: whose they are, who gets them, and when they go."""

from array import array
from collections.abc import Callable, Sequence

import pytest

from rollq import Client
from rollq.errors import ContractError, Fenced
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.job_extras import save_extras
from rollq.ledger.ledger import Ledger
from rollq.trajectory_extras import Extra
from tests.rollq.groups import ack, take
from tests.rollq.samples import claim, group, play, reader

JOB = "r/g/0"
EXPERTS = Extra(dtype="int32", shape=(2, 3), data=array("i", range(6)).tobytes())
SAMPLED = 4
"""Sampled tokens of an episode."""
TOP_P = Extra(dtype="uint32", shape=(4,), data=array("I", range(4)).tobytes())


def test_a_consumer_gets_those_that_it_asks_for(ledger: Ledger, client: Client) -> None:
    ledger.submit(group())
    play(ledger, JOB, routed_experts=EXPERTS, top_p_ids=TOP_P, unknown_to_all=TOP_P)
    play(ledger, "r/g/1")
    batch = next(client.batches(1, extras=["routed_experts", "missing"]))
    assert [trajectory.extras for trajectory in batch.trajectories] == [
        {"routed_experts": EXPERTS},
        {},
    ]
    assert batch.arrays().tokens.shape == (2, 11)  # the journal is as ever
    assert [t.extras for t in reader(ledger).read([JOB]) if not isinstance(t, ContractError)] == [
        {}
    ]


def test_only_the_lease_may_keep_them(ledger: Ledger) -> None:
    ledger.submit(group())
    lease = claim(ledger, JOB).lease
    with pytest.raises(Fenced, match=r"job r/g/0: the lease 1#other is lost"):
        save_extras(ledger.scripts, JOB, "1#other", {"a": TOP_P})
    assert not ledger.redis.exists(ledger.keys.extras(JOB))
    for _ in range(2):  # a repeat changes nothing
        save_extras(ledger.scripts, JOB, lease, {"a": TOP_P})
    assert set(ledger.redis.hkeys(ledger.keys.extras(JOB))) == {b"#", b"a"}


def test_those_of_an_attempt_that_did_not_end_the_job_are_not_delivered(ledger: Ledger) -> None:
    ledger.submit(group())
    first = claim(ledger, JOB).lease
    save_extras(ledger.scripts, JOB, first, {"a": TOP_P})
    ledger.release(JOB, first)  # it kept them, and died before it ended the job
    play(ledger, JOB)
    [found] = reader(ledger).read([JOB], ["a"])
    assert not isinstance(found, ContractError) and found.extras == {}


def discard(ledger: Ledger) -> None:
    DeadLetters(ledger.redis, "r").cancel("r/g/1")
    DeadLetters(ledger.redis, "r").discard("r/g/1")


def acknowledge(ledger: Ledger) -> None:
    play(ledger, "r/g/1")
    take(ledger, 1, "c/0")
    ack(ledger, "c/0")


def forget_run(ledger: Ledger) -> None:
    DeadLetters(ledger.redis, "r").forget_run()


@pytest.mark.parametrize("end", [acknowledge, discard, forget_run])
def test_they_go_with_the_journal(ledger: Ledger, end: Callable[[Ledger], None]) -> None:
    ledger.submit(group())
    play(ledger, JOB, a=TOP_P)
    assert ledger.redis.exists(ledger.keys.extras(JOB), ledger.keys.journal(JOB)) == 2
    end(ledger)
    assert ledger.redis.exists(ledger.keys.extras(JOB), ledger.keys.journal(JOB)) == 0


def test_names_are_checked(ledger: Ledger) -> None:
    for name in ("", "#"):
        with pytest.raises(ContractError, match="is not the name of an extra"):
            save_extras(ledger.scripts, JOB, "1#t", {name: TOP_P})


@pytest.mark.parametrize("names", ["routed_experts", ["#"], [""], [5]])
def test_a_consumer_that_asks_for_what_is_no_name_takes_nothing(
    ledger: Ledger, client: Client, names: Sequence[str]
) -> None:
    ledger.submit(group())
    play(ledger, JOB, a=TOP_P)
    play(ledger, "r/g/1")
    with pytest.raises(ContractError, match=r"belong in a list|is not the name of an extra"):
        client.consumer(extras=names)
    assert client.dead() == [] and client.stats()["groups_ready"] == 1


def test_damage_costs_its_job_alone(ledger: Ledger) -> None:
    ledger.submit(group())
    lease = play(ledger, JOB, a=TOP_P)
    play(ledger, "r/g/1", a=TOP_P)
    ledger.redis.hset(ledger.keys.extras(JOB), mapping={"#": lease, "a": b"\x93\x01\xa5extra"})
    first, second = reader(ledger).read([JOB, "r/g/1"], ["a"])
    assert isinstance(first, ContractError) and "job r/g/0: extra a" in str(first)
    assert not isinstance(second, ContractError) and second.extras == {"a": TOP_P}
    ledger.redis.set(ledger.keys.extras(JOB), "text")
    first, second = reader(ledger).read([JOB, "r/g/1"], ["a"])
    assert isinstance(first, ContractError) and "job r/g/0: extras: WRONGTYPE" in str(first)
    assert not isinstance(second, ContractError) and second.extras == {"a": TOP_P}


def scores(count: int) -> Extra:
    return Extra(dtype="float32", shape=(count,), data=array("f", [-0.5] * count).tobytes())


def test_a_teachers_logprobs_come_without_being_asked_for(ledger: Ledger) -> None:
    ledger.submit(group(teachers={"math": {}}))
    play(ledger, JOB, **{"teacher/math": scores(SAMPLED)})
    for trajectory in (*reader(ledger).read([JOB]), reader(ledger).trajectory(JOB)):
        assert not isinstance(trajectory, ContractError)
        logprobs = trajectory.teacher_logprobs["math"]
        assert [*logprobs] == [-0.5 * sampled for sampled in trajectory.mask]


@pytest.mark.parametrize("extras", [{}, {"teacher/math": scores(SAMPLED - 1)}])
def test_a_trajectory_without_them_is_never_delivered(
    ledger: Ledger, extras: dict[str, Extra]
) -> None:
    ledger.submit(group(teachers={"math": {}}))
    play(ledger, JOB, **extras)
    [error] = reader(ledger).read([JOB])
    says = "job r/g/0: the logprobs of the teacher 'math' are not there"
    assert says in str(error)
    with pytest.raises(ContractError, match=says):
        reader(ledger).trajectory(JOB)

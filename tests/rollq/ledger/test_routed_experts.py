"""Routed experts in Redis: in the journals of jobs that ask for them, joined for a consumer that
asks too.
"""

from dataclasses import replace

import pytest

from rollq import Client
from rollq.errors import ContractError
from rollq.ledger.ledger import Ledger
from rollq.trajectory_extras import ROUTED_EXPERTS
from rollq.wire.events import encode_event
from rollq.wire.routed_experts import routed_experts
from tests.rollq.routed_experts import ASKED, routed
from tests.rollq.samples import claim, events, group, job, journal, play, reader, trajectory

JOB = "r/g/0"


def submit(ledger: Ledger) -> None:
    ledger.submit(group(routed_experts=ASKED))


def play_with_experts(ledger: Ledger, job_id: str = JOB) -> None:
    lease = claim(ledger, job_id).lease
    *some, end = routed(events())
    index = journal(ledger, job_id, lease, some)
    ledger.complete(
        job_id,
        lease,
        index,
        [encode_event(end, job_id)],
        turns=2,
        sampled_tokens=4,
        total_tokens=11,
    )


def test_a_consumer_gets_a_row_for_each_token(ledger: Ledger, client: Client) -> None:
    submit(ledger)
    play_with_experts(ledger)
    play_with_experts(ledger, "r/g/1")
    played = trajectory(of=job(routed_experts=ASKED))
    wanted = routed_experts(replace(played, events=routed(played.events)))
    batch = next(client.batches(1, extras=[ROUTED_EXPERTS]))
    assert [t.extras for t in batch.trajectories] == [{ROUTED_EXPERTS: wanted}] * 2
    assert [t.extras for t in reader(ledger).read([JOB]) if not isinstance(t, ContractError)] == [
        {}
    ]


def test_jobs_that_did_not_ask_have_none_beside_those_that_did(ledger: Ledger) -> None:
    submit(ledger)
    ledger.submit(group("plain", 1))
    play_with_experts(ledger)
    play(ledger, "r/plain/0")
    with_them, without = reader(ledger).read([JOB, "r/plain/0"], [ROUTED_EXPERTS])
    assert not isinstance(with_them, ContractError) and set(with_them.extras) == {ROUTED_EXPERTS}
    assert not isinstance(without, ContractError) and without.extras == {}


def test_rows_that_are_missing_cost_their_job_alone(ledger: Ledger) -> None:
    submit(ledger)
    play(ledger, JOB)
    play_with_experts(ledger, "r/g/1")
    first, second = reader(ledger).read([JOB, "r/g/1"], [ROUTED_EXPERTS])
    assert isinstance(
        first, ContractError
    ) and "job r/g/0: routed experts of turn 0: nothing" in str(first)
    assert not isinstance(second, ContractError) and ROUTED_EXPERTS in second.extras


def test_a_group_agrees_on_them(ledger: Ledger) -> None:
    with pytest.raises(ContractError, match=r"routed_experts, .* differ within the group"):
        ledger.submit([job(0, routed_experts=ASKED), job(1)])
    with pytest.raises(ContractError, match="reward_args need reward"):
        job(0, reward_args={"endpoint": "e"})

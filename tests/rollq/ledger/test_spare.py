"""Over-provisioned groups: the first `size` graded members close the group, and the others end as
surplus.
"""

import pytest

from rollq.errors import FailureClass, LedgerError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import Refusal, State
from tests.rollq.groups import ack, take
from tests.rollq.samples import claim, group, play


@pytest.fixture
def letters(ledger: Ledger) -> DeadLetters:
    return DeadLetters(ledger.redis, "r")


@pytest.fixture
def reader(ledger: Ledger) -> LedgerReader:
    return LedgerReader(ledger.redis, "r")


def kill(ledger: Ledger, job_id: str) -> None:
    for _ in range(2):
        ledger.fail(job_id, claim(ledger, job_id).lease, FailureClass.ENV, "broken")


def test_surplus_members_are_no_dead_letters(
    ledger: Ledger, reader: LedgerReader, letters: DeadLetters
) -> None:
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


def test_the_record_of_an_acknowledged_group_knows_its_surplus(
    ledger: Ledger, reader: LedgerReader
) -> None:
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

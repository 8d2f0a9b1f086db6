"""Over-provisioned groups: the first `size` graded members close the group, and the others end as
surplus.
"""

import pytest

from rollq.errors import LedgerError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Refusal, State
from tests.rollq.groups import ack, take
from tests.rollq.samples import group, play, reader


def test_surplus_members_are_no_dead_letters(ledger: Ledger) -> None:
    ledger.submit(group("g", 1, spare=1))
    play(ledger, "r/g/0")
    look, letters = reader(ledger), DeadLetters(ledger.redis, "r")
    assert look.dead() == []
    state = look.job("r/g/1")
    assert state
    assert (state.state, state.job) == (State.SURPLUS, None)
    with pytest.raises(LedgerError, match="surplus"):
        look.trajectory("r/g/1")
    for act in (letters.requeue, letters.cancel, letters.discard):
        with pytest.raises(LedgerError, match="its group had enough graded members"):
            act("r/g/1")


def test_the_record_of_an_acknowledged_group_knows_its_surplus(ledger: Ledger) -> None:
    jobs = group("g", 1, spare=2)
    ledger.submit(jobs)
    DeadLetters(ledger.redis, "r").cancel("r/g/2")
    play(ledger, "r/g/0")
    take(ledger, 1, "t/0")
    ack(ledger, "t/0", "g")
    found = [reader(ledger).job(job.id) for job in jobs]
    assert [state and state.state for state in found] == [State.DONE, State.SURPLUS, State.DEAD]
    assert ledger.submit(jobs).acked == [job.id for job in jobs]
    late = ledger.claim("r/g/1", worker="w", token="late")
    assert isinstance(late, Refusal)
    assert late.reason == "surplus"

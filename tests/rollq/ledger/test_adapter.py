"""The LoRA adapter of a run: its first group pins it for all others."""

import pytest

from rollq.errors import ContractError, SettingsError
from rollq.ledger.ledger import Ledger
from tests.rollq.samples import group, reader


def test_the_first_group_fixes_it_for_the_run(ledger: Ledger) -> None:
    assert len(ledger.submit(group("a", adapter="math")).new) == 2
    assert len(ledger.submit(group("b", adapter="math")).new) == 2
    for other, said in (("", "none"), ("code", "code")):
        with pytest.raises(SettingsError, match=f"run r is played with adapter math, not {said}: use the run's"):
            ledger.submit(group("c", adapter=other))
    assert reader(ledger).stats()["submitted"] == 4


def test_a_run_without_one_stays_without(ledger: Ledger) -> None:
    ledger.submit(group("a"))
    assert not ledger.redis.hexists(ledger.keys.meta, "adapter")
    with pytest.raises(SettingsError, match="adapter none, not math"):
        ledger.submit(group("b", adapter="math"))


def test_the_members_of_a_group_have_the_same(ledger: Ledger) -> None:
    one, other = group("a", adapter="math"), group("a")
    with pytest.raises(ContractError, match="adapter or template_kwargs differ within the group"):
        ledger.submit([one[0], other[1]])

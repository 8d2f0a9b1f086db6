"""`rollq engines publish`, the keys of a bound on staleness, and what `stats` and `pull` tell of
them.
"""

import pytest

from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Says
from tests.rollq.commands.lines import SUBMIT
from tests.rollq.groups import play_groups

BOUND = ("--set", "groups_per_batch=4", "--set", "max_staleness=1")
STATS = ("stats", "--run", "r")


def test_a_bounded_run_from_submit_to_pull(ledger: Ledger, says: Says) -> None:
    says(*SUBMIT, *BOUND, "--set", "max_running=5")
    bound = "max staleness 1   4 groups a batch, 5 running   0 trained   capacity 1\n"
    assert f"policy    none published   {bound}" in says(*STATS).out
    play_groups(ledger, *(f"shop.train.{task}" for task in range(4)), size=1)
    published = says("engines", "publish", "--run", "r", "--step", "1", "--version", "one").out
    assert published == "run r: step 1 is published as version one, 4 more groups may enter\n"
    assert "policy    step 1, version one   max staleness 1" in says(*STATS).out
    counts = says(*STATS, "--json").json
    assert (counts["policy"], counts["admission"]["capacity"]) == (
        {"step": 1, "weight_version": "one"},
        4,
    )
    pulled = says("pull", "--run", "r", "--groups", "4", "--timeout", "9").out
    assert "4 groups, 4 trajectories" in pulled and "staleness 0 at most" in pulled


def test_a_run_without_steps_has_no_staleness(ledger: Ledger, says: Says) -> None:
    says(*SUBMIT)
    play_groups(ledger, "shop.train.0", size=1)
    assert "staleness" not in says("pull", "--run", "r", "--groups", "1").out
    assert "policy" not in says(*STATS).out


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("max_staleness=1", "groups_per_batch and max_staleness go together"),
        ("groups_per_batch=1", "groups_per_batch and max_staleness go together"),
        ("max_running=1", "max_running needs groups_per_batch"),
    ],
)
def test_the_keys_of_the_bound_go_together(says: Says, key: str, said: str) -> None:
    assert said in says(*SUBMIT, "--set", key, code=2).err


def test_publishing_to_no_run_is_an_error(says: Says) -> None:
    assert "no run 'r'" in says("engines", "publish", "--run", "r", "--step", "1", code=2).err

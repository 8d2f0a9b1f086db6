"""Arguments for the chat template, and the LoRA adapter: the run's first group pins them for all
others.
"""

import json

import pytest

from rollq.client.client import Client
from rollq.errors import ContractError, SettingsError
from rollq.ledger.ledger import Ledger
from tests.rollq.samples import group, reader

SHORT = {"enable_thinking": False, "effort": "low"}


def test_the_first_group_fixes_them_for_the_run(ledger: Ledger) -> None:
    assert len(ledger.submit(group("a", template_kwargs=SHORT)).new) == 2
    assert json.loads(ledger.redis.hget(ledger.keys.meta, "template_kwargs")) == SHORT
    assert len(ledger.submit(group("b", template_kwargs=dict(reversed(SHORT.items())))).new) == 2
    for other in ({}, {"enable_thinking": False}, {**SHORT, "enable_thinking": 0}):
        with pytest.raises(
            SettingsError, match=r'run r is played with template_kwargs \{.*"low".*\}, not \{'
        ):
            ledger.submit(group("c", template_kwargs=other))
    assert reader(ledger).stats()["submitted"] == 4


def test_the_first_group_fixes_the_adapter_for_the_run(ledger: Ledger) -> None:
    for name in ("a", "b"):
        assert len(ledger.submit(group(name, adapter="math")).new) == 2
    for other, said in (("", "none"), ("code", "code")):
        with pytest.raises(
            SettingsError, match=f"run r is played with adapter math, not {said}: use the run's"
        ):
            ledger.submit(group("c", adapter=other))


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"template_kwargs": SHORT}, r"template_kwargs \{\}, not "),
        ({"adapter": "math"}, "none, not math"),
    ],
)
def test_a_run_without_them_stays_without(
    ledger: Ledger, pins: dict[str, object], said: str
) -> None:
    ledger.submit(group("a"))
    assert not ledger.redis.hexists(ledger.keys.meta, *pins)
    with pytest.raises(SettingsError, match=said):
        ledger.submit(group("b", **pins))


def test_equal_json_is_the_same_in_a_group_and_true_is_not_1(ledger: Ledger) -> None:
    one, other = (
        group("a", template_kwargs={"stops": ("a", "b")}),
        group("a", template_kwargs={"stops": ["a", "b"]}),
    )
    assert len(ledger.submit([one[0], other[1]]).new) == 2
    one, other = (
        group("b", template_kwargs={"stops": True}),
        group("b", template_kwargs={"stops": 1}),
    )
    with pytest.raises(ContractError, match="template_kwargs differ within the group"):
        ledger.submit([one[0], other[1]])


def test_an_evaluation_inside_a_run_has_the_same(ledger: Ledger, client: Client) -> None:
    ledger.submit(group("a", template_kwargs=SHORT))
    for kwargs in ({}, SHORT):
        tasks = group("t", 1, run="", template_kwargs=kwargs)
        evaluation = client.evaluate(tasks, 1, "v", name=f"n{len(kwargs)}")
        if kwargs:
            evaluation.close()
        else:
            with pytest.raises(SettingsError, match="is played with template_kwargs"):
                evaluation.result(timeout=60)

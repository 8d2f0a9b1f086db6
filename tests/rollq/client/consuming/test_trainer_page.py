"""The policy gradient of docs/trainer.md runs as printed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollq import Client
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import finish_groups
from tests.rollq.samples import group, play, reader

PAGE = Path(__file__).resolve().parents[4] / "docs/trainer.md"


@pytest.mark.parametrize("credit", ['advantages="rloo"', "TurnCredit(estimator="])
def test_the_policy_gradient_is_what_a_hand_computes(
    ledger: Ledger, client: Client, credit: str
) -> None:
    """By turn as by episode, for there are no rewards but the last."""
    [snippet] = [
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        if credit in code
    ]
    ledger.submit(group("g", size=2))
    ledger.seal()
    play(ledger, "r/g/0", reward=0.0)
    play(ledger, "r/g/1", reward=1.0)
    losses: list[float] = []

    def model(tokens: Any, attention_mask: Any) -> Any:
        """Every token was sampled with logprob -0.5. This one is as sure in row 0, and three times
        as sure in row 1.
        """
        assert tokens.shape == attention_mask.shape == (2, 11)
        return np.full(tokens.shape, -0.5) + np.log([[1.0], [3.0]])

    exec(snippet, {"np": np, "client": client, "model": model, "step": losses.append})
    # As many sampled tokens in each row.
    assert losses == pytest.approx([-(1.0 * -1.0 + 3.0 * 1.0) / 2])
    assert reader(ledger).group_states(["g"]) == ["acked"]


def test_the_loop_with_a_filter_and_a_reward_function(
    ledger: Ledger, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    [snippet] = [code for code in snippets if "my_rewards:score" in code]
    (tmp_path / "my_rewards.py").write_text(
        "def score(trajectory):\n    return 2 * trajectory.reward\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, rewards in (("equal", (1.0, 1.0)), ("other", (0.0, 1.0))):
        ledger.submit(group(name))
        for sample, reward in enumerate(rewards):
            play(ledger, f"r/{name}/{sample}", reward)
    ledger.seal()
    trained: list[list[float]] = []
    exec(snippet, {"client": client, "train": lambda rows: trained.append(rows.rewards.tolist())})
    assert trained == [[0.0, 2.0]]
    assert reader(ledger).stats()["skips"] == {"unequal_rewards": 1}


@pytest.mark.parametrize(
    ("groups", "steps", "checkpoints"), [(20, [0, 1, 2], [0, 2, 2]), (0, [], [])]
)
def test_the_loop_with_checkpoints_saves_and_acknowledges_the_last_batches(
    ledger: Ledger, client: Client, groups: int, steps: list[int], checkpoints: list[int]
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    [snippet] = [code for code in snippets if "load_checkpoint" in code]
    finish_groups(ledger, *map(str, range(groups)), seal=True)
    trained: list[int] = []
    saved: list[int] = []
    here = {
        "client": client,
        "load_checkpoint": lambda: {"step": saved[-1]} if saved else None,
        "save_checkpoint": lambda step: saved.append(step),
        "train": lambda batch: trained.append(batch.step),
    }
    exec(snippet, here)
    exec(snippet, here)
    assert (trained, saved) == (steps, checkpoints)
    assert client.stats()["groups_acked"] == groups

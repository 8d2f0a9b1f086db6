"""Each control changes one thing of the rows and nothing else."""

from dataclasses import fields

import torch

from examples.learn_shop.negative_controls import CONTROLS
from examples.learn_shop.policy import Rows
from rollq.training.arrays import PaddedArrays

MASK = torch.tensor(
    [[0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]]
).bool()


def rows() -> Rows:
    """Two groups of two."""
    places = torch.arange(6).expand(4, 6)
    return PaddedArrays(
        tokens=torch.tensor(
            [[5, 6, 7, 8, 9, 10], [5, 6, 11, 7, 7, 7], [5, 6, 12, 0, 0, 0], [5, 6, 8, 8, 8, 9]]
        ),
        mask=MASK,
        logprobs=torch.where(MASK, -1.0 - places, 0.0),
        versions=MASK.int() - 1,
        version_names=("0",),
        version_steps=torch.zeros(1),
        prompt_lengths=torch.tensor([2, 3, 2, 2]),
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]),
        advantages=torch.tensor([1.0, -1.0, -0.5, 0.5]),
        trajectory_index=torch.arange(4),
        group_index=torch.tensor([0, 0, 1, 1]),
        attention_mask=torch.ones(4, 6).bool(),
        weights=torch.ones(4),
        left_out=0,
    )


def changed(name: str) -> tuple[set[str], Rows]:
    before = rows()
    after = CONTROLS[name].change(before)
    return {
        field.name
        for field in fields(before)
        if getattr(before, field.name) is not getattr(after, field.name)
    }, after


def test_the_mask_moves_by_one() -> None:
    names, after = changed("mask")
    assert (
        names == {"mask"}
        and (after.mask[:, 1:] == MASK[:, :-1]).all()
        and not after.mask[:, 0].any()
    )


def test_the_logprobs_move_by_one() -> None:
    names, after = changed("logprobs")
    assert names == {"logprobs"} and (after.logprobs[:, 1:] == rows().logprobs[:, :-1]).all()


def test_members_of_a_group_get_each_others_advantage() -> None:
    names, after = changed("rewards")
    assert names == {"advantages"} and after.advantages.tolist() == [-1.0, 1.0, 0.5, -0.5]


def test_without_a_ratio_the_trained_policy_is_its_own_reference() -> None:
    policy = torch.full(MASK.shape, -9.0)
    advantages = rows().advantages[:, None].expand(MASK.shape)[MASK]
    losses = {name: control.loss_of(rows(), policy) for name, control in CONTROLS.items()}
    assert torch.equal(losses["no-ratio"], -advantages) and not torch.allclose(
        losses["stale"], -advantages
    )


def test_each_other_control_has_one_thing_wrong() -> None:
    correct = CONTROLS["correct"]
    wrong = {name: (each.change, each.loss_of) for name, each in CONTROLS.items()}
    assert wrong.pop("stale") == wrong.pop("correct")
    assert all(
        (change == correct.change) + (loss == correct.loss_of) == 1
        for change, loss in wrong.values()
    )

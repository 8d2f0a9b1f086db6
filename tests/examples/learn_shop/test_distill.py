"""The loss of a distillation, and the control whose scores are a place too late."""

import math

import torch

from examples.learn_shop.distill import LARGEST_ADVANTAGE, TEACHER, distillation_loss, shift_scores
from rollq.training.arrays import PaddedArrays

MASK = torch.tensor([[False, True, True, False, True]])
TEACHERS = torch.tensor([[0.0, -0.5, -9.0, 0.0, -2.0]])


def rows() -> PaddedArrays[torch.Tensor]:
    nothing = torch.zeros(1, 5)
    return PaddedArrays(
        tokens=nothing.long(),
        mask=MASK,
        logprobs=torch.full((1, 5), -1.0),
        versions=nothing,
        version_names=(),
        version_steps=nothing,
        prompt_lengths=nothing,
        rewards=nothing,
        advantages=nothing,
        weights=nothing,
        left_out=0,
        trajectory_index=nothing,
        group_index=nothing,
        attention_mask=nothing,
        teacher_logprobs={TEACHER: TEACHERS},
    )


def test_the_advantage_is_the_teachers_logprob_less_the_policys() -> None:
    policy = torch.tensor([[0.0, -1.0 + math.log(1.1), -1.0, 0.0, -1.0]])
    likelier, never, less = distillation_loss(rows(), policy).tolist()
    assert math.isclose(likelier, -1.1 * 0.5, rel_tol=1e-5)
    assert never == LARGEST_ADVANTAGE and less == 1.0


def test_shifted_scores_are_those_of_the_token_before() -> None:
    shifted = shift_scores(rows()).teacher_logprobs[TEACHER]
    assert shifted[0, 1:].tolist() == TEACHERS[0, :-1].tolist()

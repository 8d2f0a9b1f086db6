"""Logprobs with the shared prompt computed once are those of a plain forward pass, and so are their
gradients.
"""

import pytest
import torch

from examples.learn_shop.policy import backward, logprobs_of, make
from examples.learn_shop.train import policy_loss
from rollq.training.arrays import PaddedArrays
from rollq_worker.tokens.tokenizer import Tokenizer


def test_the_shared_prompt_changes_nothing(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, tokenizer.vocab_size, (3, 40))
    tokens[:, :20] = tokens[0, :20]
    mask = torch.zeros(3, 40, dtype=torch.bool)
    mask[0, 22:30] = mask[1, 25:40] = mask[2, 20:21] = True
    model = make(tokenizer, 0)
    found, entropy = logprobs_of(model, tokens, mask)
    scores = torch.log_softmax(model(tokens).logits[:, :-1], -1)
    plain = scores.gather(2, tokens[:, 1:, None])[:, :, 0]
    assert torch.allclose(found[:, 1:][mask[:, 1:]], plain[mask[:, 1:]], atol=1e-5)
    assert (found[~mask] == 0).all() and (entropy[~mask] == 0).all() and (entropy[mask] > 0).all()
    gradients = []
    for loss in (found[mask].sum(), plain[mask[:, 1:]].sum()):
        model.zero_grad()
        loss.backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-4)


def test_a_few_rows_at_once_have_the_gradient_of_all(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([30, 44, 36])
    held = torch.arange(50) < lengths[:, None]
    tokens = torch.randint(0, tokenizer.vocab_size, (3, 50)).where(held, 0)
    tokens[:, :20] = tokens[0, :20]
    mask = held & (torch.arange(50) >= 25)
    rows = PaddedArrays(
        tokens=tokens,
        mask=mask,
        logprobs=torch.where(mask, -2.0, 0.0),
        versions=mask.int() - 1,
        version_names=("0",),
        version_steps=torch.zeros(1),
        prompt_lengths=torch.full((3,), 25),
        rewards=torch.tensor([1.0, 0.0, 0.0]),
        advantages=torch.tensor([1.0, -0.5, -0.5]),
        trajectory_index=torch.arange(3),
        group_index=torch.zeros(3),
        attention_mask=held,
        weights=torch.ones(3),
        left_out=0,
    )
    model, found = make(tokenizer, 0), []
    for at_once, bf16 in ((1, False), (2, False), (3, False), (3, True)):
        model.zero_grad()
        numbers = backward(model, rows, policy_loss, at_once=at_once, bf16=bf16)
        found.append((numbers, torch.cat([weight.grad.flatten() for weight in model.parameters()])))
    for numbers, gradient in found[:2]:
        assert numbers == pytest.approx(found[2][0], rel=1e-4)
        assert (
            torch.allclose(gradient, found[2][1], rtol=1e-3, atol=1e-5) and gradient.abs().max() > 0
        )
    assert found[3][0] != found[2][0] and found[3][0] == pytest.approx(found[2][0], rel=0.02), (
        "bfloat16 is near"
    )

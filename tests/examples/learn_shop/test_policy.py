"""Logprobs with the shared prompt computed once are those of a plain forward pass, and so are their gradients."""

import torch

from examples.learn_shop.policy import logprobs_of, make
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

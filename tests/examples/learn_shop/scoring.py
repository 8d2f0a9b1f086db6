"""Logprobs by one plain forward pass, to compare a sampler's with."""

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM


def logprobs(model: str, prompt: Sequence[int], sampled: Sequence[int]) -> list[float]:
    """The logprob of each sampled token."""
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.no_grad():
        scores = torch.log_softmax(AutoModelForCausalLM.from_pretrained(model)(ids).logits[0], -1)
    return [scores[len(prompt) - 1 + place, id].item() for place, id in enumerate(sampled)]

"""The policy: a tiny model of the Qwen3 architecture with rollq's own tokenizer, and the logprobs that it gives."""

import shutil
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer

CONTEXT = 1024
WIDTH, LAYERS, HEADS = 64, 2, 4


def make(tokenizer: Tokenizer, seed: int) -> PreTrainedModel:
    """Random weights, about 450,000, most of them embeddings."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=list(tokenizer.eos_ids),
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def save(model: PreTrainedModel, folder: Path) -> str:
    """A folder that an engine loads: weights, configuration and tokenizer. Returns its name."""
    model.save_pretrained(folder)
    for file in BUNDLED.iterdir():
        shutil.copy(file, folder)
    return str(folder)


def logprobs_of(model: PreTrainedModel, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The logprob of each token under the mask and the entropy of its place, both 0.0 elsewhere, of the tokens' shape.

    All rows begin with the same system prompt, which is computed once.
    """
    first = int(mask.any(0).nonzero()[0])
    shared = min(int((tokens == tokens[0]).all(0).cumprod(0).sum()), first - 1)
    cache = DynamicCache(config=model.config)
    model.model(tokens[:1, :shared], cache=cache, use_cache=True)
    for layer in cache.layers:
        layer.keys = layer.keys.expand(len(tokens), -1, -1, -1)
        layer.values = layer.values.expand(len(tokens), -1, -1, -1)
    hidden = model.model(tokens[:, shared:], cache=cache, use_cache=True).last_hidden_state
    predicted = mask[:, shared + 1 :]  # the output at place i - 1 is about token i
    scores = torch.log_softmax(model.lm_head(hidden[:, :-1][predicted]), -1)
    logprobs, entropy = torch.zeros(mask.shape), torch.zeros(mask.shape)
    logprobs[mask] = scores.gather(1, tokens[mask][:, None])[:, 0]
    entropy[mask] = -(scores.exp() * scores).sum(-1).detach()
    return logprobs, entropy

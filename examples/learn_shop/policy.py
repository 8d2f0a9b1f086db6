"""The policy: a tiny model of the Qwen3 architecture with rollq's own tokenizer, or a pretrained
one; and the logprobs and gradients that a trainer takes of it.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rollq.training.arrays import PaddedArrays
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer

CONTEXT = 1024
WIDTH, LAYERS, HEADS, TIED = 64, 2, 4, True
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
TEMPLATE = "chat_template.jinja"

Rows = PaddedArrays[Tensor]
Loss = Callable[[Rows, Tensor], Tensor]
"""The loss of each sampled token of some rows, by the policy's logprobs (of the shape of the rows'
tokens).
"""


def make(tokenizer: Tokenizer, seed: int, context: int = CONTEXT) -> PreTrainedModel:
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
        max_position_embeddings=context,
        tie_word_embeddings=TIED,
        eos_token_id=list(tokenizer.eos_ids),
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def save(model: PreTrainedModel, folder: Path, vocabulary: Path = BUNDLED) -> str:
    """A folder that an engine loads: weights, configuration, the tokenizer of the folder
    `vocabulary`, and rollq's own chat template, which is ChatML and keeps calls in the history.
    Returns its absolute path.
    """
    model.save_pretrained(folder)
    for file in TOKENIZER_FILES:
        shutil.copy(vocabulary / file, folder)
    shutil.copy(BUNDLED / TEMPLATE, folder)
    return str(folder.resolve())


def backward(
    model: PreTrainedModel, rows: Rows, loss_of: Loss, *, at_once: int, bf16: bool
) -> dict[str, float]:
    """Adds the gradient of the mean loss of the sampled tokens. Returns means over these.

    `at_once` rows are held in memory at a time. Those of like length are together, so that little
    is padding; the longest come first, so that a lack of memory shows at once.
    """
    sums = torch.zeros(3)
    for part in rows.attention_mask.sum(1).argsort(descending=True).split(at_once):
        few = _part(rows, part, model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            logprobs, entropy = logprobs_of(model, few.tokens, few.mask)
        losses = loss_of(few, logprobs)
        (losses.sum() / rows.mask.sum()).backward()
        ratios = (logprobs.detach() - few.logprobs)[few.mask].abs()
        sums += torch.stack([losses.detach().sum(), entropy[few.mask].sum(), ratios.sum()]).cpu()
    means = sums / rows.mask.sum()
    return dict(zip(("loss", "entropy", "mean_abs_log_ratio"), means.tolist(), strict=True))


def _part(rows: Rows, part: Tensor, device: torch.device) -> Rows:
    """Inputs of a loss for some of the rows, as long as their longest one."""
    length = int(rows.attention_mask[part].sum(1).max())

    def cut(values: Tensor) -> Tensor:
        return values[part, :length].to(device)

    tokens, mask, logprobs = cut(rows.tokens), cut(rows.mask), cut(rows.logprobs)
    return replace(
        rows,
        tokens=tokens,
        mask=mask,
        logprobs=logprobs,
        advantages=rows.advantages[part].to(device),
        teacher_logprobs={name: cut(scores) for name, scores in rows.teacher_logprobs.items()},
    )


def logprobs_of(model: PreTrainedModel, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The logprob of each token under the mask and the entropy of its place, both 0.0 elsewhere, of
    the tokens' shape.

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
    scores = torch.log_softmax(model.lm_head(hidden[:, :-1][predicted]).float(), -1)
    logprobs, entropy = (
        torch.zeros_like(tokens, dtype=torch.float32),
        torch.zeros_like(tokens, dtype=torch.float32),
    )
    logprobs[mask] = scores.gather(1, tokens[mask][:, None])[:, 0]
    entropy[mask] = -(scores.detach().exp() * scores.detach()).sum(-1)
    return logprobs, entropy

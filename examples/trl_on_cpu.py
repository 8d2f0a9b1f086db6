"""Functions that TRL's AsyncGRPOTrainer lacks on a CPU."""

import torch
from trl.experimental.async_grpo import async_grpo_trainer, packing


class Attention:
    """Computes on the CPU what TRL has a GPU kernel for: each segment attends to the keys of its
    own path, of which its own are the last.
    """

    @staticmethod
    def flash_attn_varlen_func(
        query, key, value, ends_q, ends_k, most_q, most_k, softmax_scale=None, **_
    ):
        parts = []
        for q0, q1, k0, k1 in zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:], strict=True):
            q, k, v = (x.transpose(0, 1) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
            seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(
                k.shape[1] - q.shape[1]
            )
            attended = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=softmax_scale, enable_gqa=True
            )
            parts.append(attended.transpose(0, 1))
        return torch.cat(parts)


def use_cpu() -> None:
    """TRL's trainer wants a GPU in two places."""
    packing._flash_attn = lambda: Attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None

"""tiny_moe_model.py TEXT_MODEL OUT: a tiny Qwen3-MoE of random experts, which samples the tokens of
the text model.

Vocabulary, embeddings and head are those of the small model in TEXT_MODEL. Run it with an
interpreter that has torch and transformers. It writes what SGLang needs: weights, configuration,
tokenizer, chat template.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

SHAPE = {"num_hidden_layers": 3, "num_experts_per_tok": 2, "num_experts": 8}
"""What the contract test asks for."""


@torch.no_grad()
def main(source: Path, out: Path) -> None:
    torch.manual_seed(0)
    small = AutoModelForCausalLM.from_pretrained(source)
    names = (
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    )
    names += ("eos_token_id", "bos_token_id")
    same = {name: getattr(small.config, name) for name in names}
    sizes = {
        "intermediate_size": 128,
        "moe_intermediate_size": 64,
        "head_dim": 16,
        "decoder_sparse_step": 1,
    }
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**same, **sizes, **SHAPE, tie_word_embeddings=False))
    model.model.embed_tokens.weight.copy_(small.model.embed_tokens.weight)
    model.lm_head.weight.copy_(small.lm_head.weight)
    for name, weight in model.named_parameters():
        # Hidden dimension 0 is 1 in the small model and nothing writes to it: the head's bias.
        if name.endswith("o_proj.weight"):
            weight[0] = 0
        elif name.endswith(("down_proj.weight", "experts.down_proj")):
            weight[..., 0, :] = 0
        elif name.endswith("gate.weight"):
            weight.mul_(50)  # clear choices: rounding must not change them
    model.to(torch.bfloat16).save_pretrained(out)
    for file in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ):
        shutil.copy(source / file, out / file)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))

"""tiny_adapters.py MODEL OUT: two LoRA adapters of random weights in OUT/1 and OUT/2, as PEFT
writes them.

Run it with an interpreter that has torch.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 8


def main(model: Path, out: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    outputs = {"q_proj": hidden, "v_proj": hidden // heads * config["num_key_value_heads"]}
    for seed in (1, 2):
        random, tensors = torch.Generator().manual_seed(seed), {}
        for layer in range(config["num_hidden_layers"]):
            for name, size in outputs.items():
                at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
                tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, hidden, generator=random) * 0.3
                tensors[f"{at}.lora_B.weight"] = torch.randn(size, RANK, generator=random) * 0.3
        (folder := out / str(seed)).mkdir(parents=True)
        save_file(tensors, folder / "adapter_model.safetensors")
        peft = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": RANK,
            "lora_alpha": 2 * RANK,
            "bias": "none",
        }
        peft |= {"target_modules": [*outputs], "base_model_name_or_path": str(model)}
        (folder / "adapter_config.json").write_text(json.dumps(peft))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

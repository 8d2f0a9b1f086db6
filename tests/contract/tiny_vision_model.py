"""tiny_vision_model.py TEXT_MODEL OUT KIND TEMPLATE: a tiny Qwen2.5-VL or Qwen3-VL (KIND:
qwen2_5_vl, qwen3_vl).

Vocabulary, embeddings and head are those of the small text model in TEXT_MODEL, and for Qwen2.5-VL
its layers too, so the model samples what that one does. The vision tower is random. Run it with an
interpreter that has torch, torchvision and transformers. It writes what SGLang needs: weights,
tokenizer, chat template, image processor.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

NORM = [0.5, 0.5, 0.5]
PIXELS = {"shortest_edge": 4 * 32 * 32, "longest_edge": 64 * 32 * 32}
"""Fewest and most pixels of a resized image: 4 to 64 tokens of 32 x 32."""


def text_config(small: Any) -> dict[str, Any]:
    """The language model's configuration, that of the text model with positions of three axes."""
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    names += ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act")
    pairs = small.hidden_size // small.num_attention_heads // 2
    rope = {
        "rope_theta": small.rope_parameters["rope_theta"],
        "rope_type": "default",
        "mrope_section": [pairs // 4, pairs * 3 // 8, pairs * 3 // 8],
    }
    ends = {"eos_token_id": small.eos_token_id, "bos_token_id": small.bos_token_id}
    return {name: getattr(small, name) for name in names} | {"rope_parameters": rope} | ends


def qwen2_5_vl(small: Any) -> torch.nn.Module:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
    }
    vision |= {"patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]}
    config = Qwen2_5_VLConfig(
        text_config=text_config(small), vision_config=vision, tie_word_embeddings=False
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl(small: Any) -> torch.nn.Module:
    text = text_config(small) | {"head_dim": small.hidden_size // small.num_attention_heads}
    text["rope_parameters"]["mrope_interleaved"] = True
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
    }
    vision |= {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)
    return Qwen3VLForConditionalGeneration(config)


KINDS = {
    "qwen2_5_vl": (qwen2_5_vl, "Qwen2_5_VLProcessor", 14),
    "qwen3_vl": (qwen3_vl, "Qwen3VLProcessor", 16),
}


def main(source: Path, out: Path, kind: str, template: Path) -> None:
    torch.manual_seed(0)
    small = AutoModelForCausalLM.from_pretrained(source)
    make, processor, patch = KINDS[kind]
    model: Any = make(small.config)
    weights = {
        f"model.language_model.{name}": tensor for name, tensor in small.model.named_parameters()
    }
    weights["lm_head.weight"] = small.lm_head.weight
    known = model.state_dict()
    model.load_state_dict(
        {name: tensor for name, tensor in weights.items() if name in known}, strict=False
    )
    model.to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, out / name)
    shutil.copy(template, out / "chat_template.jinja")
    images = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": processor,
        "size": PIXELS,
    }
    images |= {
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": NORM,
        "image_std": NORM,
    }
    (out / "preprocessor_config.json").write_text(json.dumps(images))
    videos = images | {
        "video_processor_type": "Qwen2VLVideoProcessor" if patch == 14 else "Qwen3VLVideoProcessor"
    }
    del videos["image_processor_type"]
    (out / "video_preprocessor_config.json").write_text(json.dumps(videos))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))

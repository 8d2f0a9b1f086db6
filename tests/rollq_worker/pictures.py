"""Pictures made by code, a chat template that shows images, and the folder of a vision model's
tokenizer.
"""

import io
import json
import random
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from rollq.env import Image
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer
from tests.rollq_worker.tokens.models import spec_with, tokenizer_with

VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 64 * 28 * 28},
}
_PART = "{{ '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}"
_PARTS = (
    "{% if x is string %}{{ x }}{% else %}{% for part in x %}" + _PART + "{% endfor %}{% endif %}"
)


@cache
def file_of(width: int, height: int, seed: int = 0, kind: str = "PNG") -> bytes:
    """A picture of noise."""
    pixels = random.Random(seed).randbytes(3 * width * height)
    file = io.BytesIO()
    Pillow.frombytes("RGB", (width, height), pixels).save(file, kind)
    return file.getvalue()


def image(width: int, height: int, seed: int = 0) -> Image:
    return Image(file_of(width, height, seed))


def vision_template() -> str:
    """The bundled template, which also shows the images in messages of users and tools."""
    text = (BUNDLED / "chat_template.jinja").read_text()
    shown = "{%- macro show(x) -%}" + _PARTS + "{%- endmacro -%}"
    text = text.replace(
        "+ message.content + '\\n</tool_response>'",
        "+ show(message.content) + '\\n</tool_response>'",
    )
    text = text.replace(
        "+ message.content + '<|im_end|>\\n'", "+ show(message.content) + '<|im_end|>\\n'"
    )
    assert text.count("show(message.content)") == 2
    return shown + text


def vision_tokenizer(template: str | None = None, **processor: Any) -> Tokenizer:
    """A vocabulary with vision tokens, and the image processor of Qwen2.5-VL with few pixels."""
    tokenizer = copy(tokenizer_with("a vision model", template or vision_template(), VISION))
    tokenizer.image_processor = PROCESSOR | processor
    return tokenizer


def write_vision_tokenizer(folder: Path) -> Path:
    """The same as the folder that an engine and a worker are given."""
    (folder / "tokenizer.json").write_bytes(spec_with(tuple(VISION)))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "chat_template.jinja").write_text(vision_template())
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder

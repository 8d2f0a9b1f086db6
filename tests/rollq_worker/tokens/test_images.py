"""Image tokens: as many as the model's own image processor makes, and only where an environment
shows an image.
"""

import json
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import EnvironmentFailure, JobFailure
from rollq.events import Message
from rollq.images import content_with
from rollq_worker.tokens.images import MAX_RATIO, ImageTokens
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import checked_renderer
from rollq_worker.tokens.tokenizer import load_tokenizer
from rollq_worker.tokens.training_templates import template_text
from tests.rollq_worker.pictures import image, vision_tokenizer, write_vision_tokenizer
from tests.rollq_worker.tokens.models import tokenizer_with

LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ],
}
PAD = "<|image_pad|>"
sides = st.integers(1, 3000)


@cache
def real_processor(config: str) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(**json.loads(config))


def said(role: str, text: str, *sizes: tuple[int, int]) -> Message:
    shown = [image(*size).reference for size in sizes]
    message: Message = {"role": role, "content": content_with(text, shown)}
    return message | ({"tool_call_id": "call_0"} if role == "tool" else {})


class TestCount:
    """Against the image processor of transformers, which both engines and trainers run."""

    @pytest.mark.parametrize(
        "config",
        [
            {"patch_size": 14, "min_pixels": 3136, "max_pixels": 12845056},
            {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
            {
                "patch_size": 14,
                "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 64 * 28 * 28},
            },
            {"patch_size": 14},
        ],
        ids=["Qwen2.5-VL", "Qwen3-VL", "few pixels", "no sizes"],
    )
    @given(width=sides, height=sides)
    def test_is_the_processors(self, config: dict[str, Any], width: int, height: int) -> None:
        tokenizer = vision_tokenizer(**{"size": None, **config})
        ours = ImageTokens(tokenizer)
        if max(width, height) > MAX_RATIO * min(width, height):
            with pytest.raises(EnvironmentFailure, match="no side may be"):
                ours.length(width, height)
            return
        patches = real_processor(json.dumps(config)).get_number_of_image_patches(height, width, {})
        assert ours.length(width, height) == patches // 4


class TestRendering:
    renderer = ChatRenderer(vision_tokenizer(), [LOOK])

    def test_the_first_prompt_has_each_images_tokens(self) -> None:
        ids = self.renderer.open(
            [said("system", "s"), said("user", "See:", (56, 56), (84, 56))], [LOOK]
        )
        shown = "".join(f"<|vision_start|>{PAD * count}<|vision_end|>" for count in (4, 6))
        assert f"user\nSee:{shown}<|im_end|>" in self.renderer.tokenizer.decode(ids)

    def test_a_bridge_does_too(self) -> None:
        ids = self.renderer.bridge(CALL, [said("tool", "Here:", (56, 112))])
        text = self.renderer.tokenizer.decode(ids)
        assert f"Here:<|vision_start|>{PAD * 8}<|vision_end|>\n</tool_response>" in text

    def test_a_bridge_continues_the_full_render(self) -> None:
        before = [said("system", "s"), said("user", "u", (56, 56))]
        after = [*before, CALL, said("tool", "", (84, 84)), {"role": "assistant", "content": "two"}]
        first = self.renderer.open(before, [LOOK])
        turn = self.renderer.tokenizer.encode(
            '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
        )
        bridge = self.renderer.bridge(CALL, [after[3]], turn[-1])
        full = self.renderer.open([*after[:4]], [LOOK])
        assert first + turn + bridge == full

    def test_placeholders_in_words_stay_words(self) -> None:
        words = f"<|vision_start|>{PAD}<|vision_end|>"
        for text in (words, PAD[:5], PAD[5:]):
            ids = self.renderer.open([said("system", words), said("user", text, (56, 56))], [LOOK])
            assert ids.count(self.renderer.image_token) == 4
            bridge = self.renderer.bridge(CALL, [said("tool", text, (56, 56))])
            assert bridge.count(self.renderer.image_token) == 4

    def test_a_template_that_leaves_images_out_is_refused(self) -> None:
        template = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if m.content "
            "is string else '' }}"
        )
        template += (
            "<|im_end|>\n{% endfor %}{% if add_generation_prompt "
            "%}<|im_start|>assistant\n{% endif %}"
        )
        tokens = ImageTokens(vision_tokenizer())
        ids = vision_tokenizer(template).encode("<|im_start|>user\n<|im_end|>")
        with pytest.raises(JobFailure, match="writes 0 placeholders for 1 images"):
            tokens.expand(ids, [said("user", "u", (56, 56))])

    def test_without_images_the_ids_are_left_alone(self) -> None:
        ids = array("I", [1, 2, 3])
        assert ImageTokens(tokenizer_with("text", "")).expand(ids, [said("user", "u")]) is ids


class TestQwen25VL:
    """The training template: the model's own knows no tools."""

    renderer = checked_renderer(vision_tokenizer(template_text("qwen2.5-vl")), [LOOK])

    def test_images_are_shown_in_results(self) -> None:
        before = [said("system", "s"), said("user", "u", (56, 56))]
        after = [*before, CALL, said("tool", "Here:", (84, 56), (56, 56))]
        first = self.renderer.open(before, [LOOK])
        turn = self.renderer.tokenizer.encode(
            '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
        )
        bridge = self.renderer.bridge(CALL, [after[3]], turn[-1])
        assert first + turn + bridge == self.renderer.open(after, [LOOK])
        shown = "".join(f"<|vision_start|>{PAD * count}<|vision_end|>" for count in (6, 4))
        assert f"<tool_response>\nHere:{shown}\n</tool_response>" in self.renderer.tokenizer.decode(
            bridge
        )


class TestModels:
    def test_one_of_text_is_refused_with_the_remedy(self) -> None:
        with pytest.raises(
            JobFailure, match=r"a model of text: serve Qwen2\.5-VL or Qwen3-VL, and give its folder"
        ):
            ImageTokens(tokenizer_with("text", "")).length(10, 10)

    @pytest.mark.parametrize(
        "config", [{"image_processor_type": "CLIPImageProcessor"}, {"do_resize": False}]
    )
    def test_another_processor_is_refused(self, config: dict[str, Any]) -> None:
        with pytest.raises(JobFailure, match="does not know how many tokens"):
            ImageTokens(vision_tokenizer(**config)).length(10, 10)

    @pytest.mark.parametrize(
        "config", [{"patch_size": "big"}, {"patch_size": 0}, {"size": [1]}, {"min_pixels": "few"}]
    )
    def test_sizes_of_the_wrong_form_are_refused(self, config: dict[str, Any]) -> None:
        with pytest.raises(JobFailure, match=r"sizes in preprocessor_config\.json cannot be read"):
            ImageTokens(vision_tokenizer(**config)).length(10, 10)

    def test_the_folders_image_processor_is_part_of_the_hash(self, tmp_path: Path) -> None:
        folder = write_vision_tokenizer(tmp_path)
        vision = load_tokenizer(str(folder))
        assert ImageTokens(vision).length(56, 56) == 4
        (folder / "preprocessor_config.json").unlink()
        text = load_tokenizer(str(folder))
        assert text.image_processor is None and text.template_hash != vision.template_hash

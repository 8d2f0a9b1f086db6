"""The tokens of an image in a prompt, as by the image processor of Qwen2-VL and its successors.

Qwen2-VL, Qwen2.5-VL and Qwen3-VL resize an image to a multiple of a square's side, within a range
of pixels. Each square is one `<|image_pad|>`. A chat template writes one placeholder an image, and
the processor repeats it for each square. This module knows no pixels.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
import re
from array import array
from collections.abc import Mapping, Sequence

from rollq.errors import EnvironmentFailure, JobFailure
from rollq.events import Message
from rollq.images import references
from rollq.job import Json
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.tokens.tokenizer_files import IMAGE_CONFIG

PLACEHOLDER = "<|image_pad|>"
PROCESSORS = re.compile(r"Qwen2VLImageProcessor\w*")
MAX_RATIO = 200
"""Longest side over shortest side; the processor refuses more."""
FEWEST_PIXELS, MOST_PIXELS = 56 * 56, 28 * 28 * 1280
"""Fewest and most pixels of a resized image where the configuration says neither."""


class ImageTokens:
    """The image tokens of one tokenizer. Every method raises JobFailure where the model takes no
    images.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def placeholder(self) -> int:
        """The token that stands for one square of an image."""
        self._config()
        return self._tokenizer.added_tokens[PLACEHOLDER]

    def length(self, width: int, height: int) -> int:
        """The number of tokens of an image of this size, in pixels. Raises EnvironmentFailure for a
        strip.
        """
        config = self._config()
        if max(width, height) > MAX_RATIO * min(width, height):
            raise EnvironmentFailure(
                f"an image that the environment shows is {width} x {height}; no side may be more "
                f"than {MAX_RATIO} times the other: crop it"
            )
        try:
            side = int(config.get("patch_size", 14)) * int(config.get("merge_size", 2))
            size = config.get("size") or {}
            fewest = config.get("min_pixels") or size.get("shortest_edge") or FEWEST_PIXELS
            most = config.get("max_pixels") or size.get("longest_edge") or MOST_PIXELS
            rows, columns = squares(height, width, side, fewest, most)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as e:
            raise JobFailure(
                f"{self._tokenizer.name}: the sizes in {IMAGE_CONFIG} cannot be read: {e!r:.100}"
            ) from e
        return rows * columns

    def expand(self, ids: array[int], messages: Sequence[Message]) -> array[int]:
        """The ids of these messages with as many placeholders as each image takes. `ids` has one
        for each.
        """
        if not any(isinstance(message.get("content"), list) for message in messages):
            return ids
        shown = references(messages)
        placeholder = self.placeholder
        if ids.count(placeholder) != len(shown):
            raise JobFailure(
                f"the chat template of {self._tokenizer.name} writes {ids.count(placeholder)} "
                f"placeholders for {len(shown)} images: use a template that shows images in the "
                "results of tools"
            )
        expanded = array("I")
        at = 0
        for image in shown:
            position = ids.index(placeholder, at)
            expanded += ids[at:position]
            expanded += array("I", [placeholder]) * self.length(image.width, image.height)
            at = position + 1
        return expanded + ids[at:]

    def _config(self) -> Mapping[str, Json]:
        """The image processor's configuration."""
        name, config = self._tokenizer.name, self._tokenizer.image_processor
        if not config or PLACEHOLDER not in self._tokenizer.added_tokens:
            raise JobFailure(
                f"the environment shows an image, but {name} is a model of text: serve Qwen2.5-VL "
                f"or Qwen3-VL, and give its folder with {IMAGE_CONFIG} as the tokenizer"
            )
        kind = str(config.get("image_processor_type", ""))
        if not PROCESSORS.fullmatch(kind) or config.get("do_resize") is False:
            raise JobFailure(
                f"{name}: rollq does not know how many tokens an image takes with the image "
                f"processor {kind!r} of {IMAGE_CONFIG}; it knows that of Qwen2-VL, Qwen2.5-VL and "
                "Qwen3-VL, with do_resize"
            )
        if self._tokenizer.fixed_arguments.get("add_vision_id"):
            raise JobFailure(
                "add_vision_id numbers all images of a conversation, which a bridge does not know: "
                "leave it out"
            )
        return config


def squares(height: int, width: int, side: int, fewest: int, most: int) -> tuple[int, int]:
    """Rows and columns of squares of `side` pixels after resizing to between `fewest` and `most`
    pixels.

    Each side is rounded to a multiple of `side`. Beyond the range, both are scaled alike and then
    rounded inwards.
    """
    rows, columns = round(height / side), round(width / side)
    if rows * columns * side * side > most:
        scale = math.sqrt(height * width / most)
        rows = max(1, math.floor(height / scale / side))
        columns = max(1, math.floor(width / scale / side))
    elif rows * columns * side * side < fewest:
        scale = math.sqrt(fewest / (height * width))
        rows, columns = math.ceil(height * scale / side), math.ceil(width * scale / side)
    return rows, columns

"""The images of a request: counted and placed as SGLang does, and not looked at.

It answers as SGLang 0.5.23 does where a prompt has another number of placeholders than images. A
model of text ignores images, as a real one does.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import base64
import re
from array import array
from collections.abc import Mapping
from typing import Any

from rollq.env import Image
from rollq.errors import EnvironmentFailure
from rollq.images import ImageRef
from rollq_worker.replay_engine.http_bodies import bad_body, bad_value
from rollq_worker.tokens.images import ImageTokens
from rollq_worker.tokens.tokenizer import Tokenizer

FIELD = "image_data"
_SHOWN = re.compile(r"<\|vision_start\|>(<\|image_pad\|>)+<\|vision_end\|>")


def with_placeholders(body: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The body without its images, and with as many placeholders in its prompt as they take. Raises
    HttpError.
    """
    rest = {name: value for name, value in body.items() if name != FIELD}
    data: Any = body.get(FIELD)
    if not data or tokenizer.image_processor is None:
        return rest
    ids: Any = body.get("input_ids")
    if not isinstance(data, list) or not isinstance(ids, list):
        raise bad_body(FIELD, "Input should be a list of data URLs, beside input_ids")
    images = [_read(url) for url in data]
    tokens = ImageTokens(tokenizer)
    placeholders = ids.count(tokens.placeholder)
    if placeholders != len(images):
        raise bad_value(
            f"Prompt has {placeholders} image placeholders but {len(images)} image inputs were "
            "provided"
        )
    shown = {"content": [image.part for image in images]}
    expanded = tokens.expand(array("I", ids), [shown])
    return rest | {"input_ids": expanded.tolist()}


def without_images(text: str) -> str:
    """A message's text without the placeholders of its images."""
    return _SHOWN.sub("", text)


def _read(url: Any) -> ImageRef:
    try:
        data = url.rpartition(",")[2]
        return Image(base64.b64decode(data, validate=True)).reference
    except (AttributeError, ValueError, EnvironmentFailure) as e:
        raise bad_value(f"An exception occurred while loading IMAGE data: {e}") from e

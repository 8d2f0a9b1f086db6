"""The images of one episode: shown in messages by reference, sent with every request, kept beside
the journal.

The invariant: a request has as many images as its prompt has placeholders. It knows neither
templates nor engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Mapping, Sequence

from rollq.env import Image
from rollq.errors import EnvironmentFailure
from rollq.events import Message
from rollq.images import IMAGES, ImageRef, pack_images, references
from rollq.trajectory_extras import Extra
from rollq_worker.protocols import PromptImages, Renderer

MAX_EPISODE_BYTES = 32 << 20
"""Most bytes of the images of one episode. A request carries all of them."""


class EpisodeImages:
    """The images so far, in the order in which the conversation shows them."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._shown: list[Image] = []
        self._files: dict[str, Image] = {}  # by hash, so that equal images are in memory once
        self._tokens = 0
        self._bytes = 0

    def add(self, images: Sequence[Image]) -> list[ImageRef]:
        """The references of the images that the next message shows.

        Raises JobFailure where the model takes no images, EnvironmentFailure for more than a
        request may carry, and TypeError for other values than Images.
        """
        added = []
        for image in images:
            if not isinstance(image, Image):
                raise TypeError(
                    f"an image of the observation is a {type(image).__name__}, not an Image"
                )
            reference = image.reference
            self._tokens += self._renderer.image_length(reference.width, reference.height)
            self._bytes += reference.bytes
            kept = self._files.setdefault(reference.sha256, image)
            self._shown.append(kept)
            added.append(reference)
        if self._bytes > MAX_EPISODE_BYTES:
            raise EnvironmentFailure(
                f"{len(self._shown)} images of {self._bytes} bytes; at most {MAX_EPISODE_BYTES} "
                "are sent in an episode: show fewer or smaller ones"
            )
        return added

    def show(self, messages: Sequence[Message]) -> None:
        """Gives requests the images of these messages, which were shown before, and no others."""
        shown = references(messages)
        self._shown = [self._files[reference.sha256] for reference in shown]
        self._tokens = sum(
            self._renderer.image_length(reference.width, reference.height) for reference in shown
        )

    def of_prompt(self) -> PromptImages | None:
        """Images of a request; None without images."""
        if self._shown:
            return PromptImages(self._renderer.image_token, tuple(self._shown))
        return None

    def misplaced(self, ids: array[int]) -> bool:
        """True if the policy has sampled a placeholder itself, so that no request can hold these
        ids.

        SGLang takes each placeholder for an image, and never answers a request that has more of
        them than images.
        """
        if not self._shown:
            return False
        placeholders = ids.count(self._renderer.image_token)
        return placeholders != self._tokens

    def extras(self) -> Mapping[str, Extra]:
        """The files, each once, in the order of the conversation."""
        if self._files:
            files = [image.data for image in self._files.values()]
            return {IMAGES: pack_images(files)}
        return {}

"""References to images in messages, and the images of a trajectory.

The invariant: a message holds an image's reference, never its bytes. The bytes are in the
trajectory's extra IMAGES, end to end, each image once, in the order in which they were first shown.
Pure values, standard library only.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rollq.errors import ContractError
from rollq.events import Message, Observed
from rollq.job import Json
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import Extra

IMAGES = "images"
"""Name of the extra: `batches(extras=[IMAGES])`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """An image's part of a message."""

    sha256: str
    mime: str
    """`image/png` or `image/jpeg`."""
    width: int
    height: int
    bytes: int

    @property
    def part(self) -> dict[str, Json]:
        """The part of a message's content that stands for the image; chat templates know it by its
        type.
        """
        return {"type": "image", **asdict(self)}


def text_of(content: Json) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part.get("type") == "text")


def references(messages: Iterable[Message]) -> list[ImageRef]:
    """The images that these messages show, in order."""
    found = []
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "image":
                fields = {name: value for name, value in part.items() if name != "type"}
                found.append(ImageRef(**fields))
    return found


def refuse_images(trajectory: Trajectory, trainer: str) -> None:
    """Raises ContractError for an episode that showed images, which this trainer would train on
    without their pixels.
    """
    if references(trajectory.messages):
        raise ContractError(
            f"job {trajectory.job.id}: its episode showed images, and rollq's adapter for "
            f"{trainer} passes none on: it would train on placeholders. Use "
            "Client.batches(extras=['images']) (docs/images.md)"
        )


def pack_images(images: Iterable[bytes]) -> Extra:
    """The extra that keeps these images."""
    data = b"".join(images)
    return Extra(dtype="uint8", shape=(len(data),), data=data)


def images_by_hash(trajectory: Trajectory) -> dict[str, bytes]:
    """The files of all images that the trajectory shows, by the sha256 in their references.

    Raises ContractError when the trajectory came without the extra IMAGES, or with other bytes than
    it refers to.
    """
    shown = references(trajectory.messages)
    extra = trajectory.extras.get(IMAGES)
    if shown and extra is None:
        raise ContractError(
            f"job {trajectory.job.id}: its images were not asked for: take batches with "
            f"extras=[{IMAGES!r}]"
        )
    return files_by_hash(shown, extra.data if extra else b"", trajectory.job.id)


def files_by_hash(shown: Iterable[ImageRef], data: bytes, job_id: str) -> dict[str, bytes]:
    """The files of these images, by sha256, out of the bytes that were kept for a job. Raises
    ContractError when they are others.
    """
    files: dict[str, bytes] = {}
    start = 0
    for ref in {ref.sha256: ref for ref in shown}.values():
        file = data[start : start + ref.bytes]
        files[ref.sha256] = file
        start += ref.bytes
        if hashlib.sha256(file).hexdigest() != ref.sha256:
            raise ContractError(
                f"job {job_id}: the bytes kept for image {ref.sha256} are not that image"
            )
    return files


def images_of_segments(trajectory: Trajectory) -> list[list[bytes]]:
    """Files of the images of each row of `trajectory.segments()`, in the order of their
    placeholders.

    A trainer makes pixel values of them with the model's own image processor. Raises ContractError
    as `images_by_hash` does.
    """
    files = images_by_hash(trajectory)
    rows = []
    for segment in trajectory.segments():
        answered = [event for event in segment.events if isinstance(event, Observed) and event.ids]
        shown = [
            *segment.prompt_messages,
            *(reply for event in answered for reply in event.replies),
        ]
        rows.append(
            [files[ref.sha256] for ref in references(shown)]
        )  # without a bridge, replies have no tokens
    return rows


def content_with(text: str, images: Sequence[ImageRef]) -> Json:
    """A message's content: the text, and the images behind it."""
    if not images:
        return text
    return [*([{"type": "text", "text": text}] if text else []), *(image.part for image in images)]

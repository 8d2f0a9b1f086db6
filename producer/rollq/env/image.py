"""An image that an environment shows, checked once, where it is made.

The invariant: an `Image` is a whole PNG or JPEG that decodes, within the limits below. It knows no
model: how many tokens it takes is the worker's to say.
"""

import base64
import hashlib
import io
from dataclasses import dataclass, field

from rollq.errors import EnvironmentFailure
from rollq.images import ImageRef
from rollq.pip_extras import needs

MAX_IMAGE_BYTES = 8 << 20
"""Most bytes of one file. Every request of the episode sends it again."""
MAX_IMAGE_PIXELS = 1 << 24
"""Most pixels: 4096 x 4096, the most that Qwen3-VL looks at."""
MIMES = {"PNG": "image/png", "JPEG": "image/jpeg"}
_ORIENTATION = 0x0112
"""EXIF's orientation. Readers differ in whether they turn the image, so the policy and the trainer
might see two.
"""


@dataclass(frozen=True, slots=True)
class Image:
    """A PNG or JPEG file. Raises EnvironmentFailure for anything else, and for one that is too
    large.
    """

    data: bytes = field(repr=False)
    """The whole file, up to 8 MiB."""
    reference: ImageRef = field(init=False)
    """Hash, type, size in pixels and bytes: what journals keep of it."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise EnvironmentFailure(
                f"an image is the bytes of a PNG or JPEG file, not a {type(self.data).__name__}"
            )
        if len(self.data) > MAX_IMAGE_BYTES:
            raise _refusal(
                f"has {len(self.data)} bytes; at most {MAX_IMAGE_BYTES} are sent: make it smaller"
            )
        mime, width, height = _read(self.data)
        digest = hashlib.sha256(self.data).hexdigest()
        reference = ImageRef(
            sha256=digest, mime=mime, width=width, height=height, bytes=len(self.data)
        )
        object.__setattr__(self, "reference", reference)

    @property
    def data_url(self) -> str:
        """`data:image/png;base64,...`, as engines take it."""
        return f"data:{self.reference.mime};base64,{base64.b64encode(self.data).decode()}"


def _read(data: bytes) -> tuple[str, int, int]:
    """Type, width and height. The image is decoded once, because an engine refuses a file that ends
    early.
    """
    with needs("images"):
        from PIL import Image as Pillow
    try:
        with Pillow.open(io.BytesIO(data), formats=tuple(MIMES)) as image:
            (width, height) = image.size
            mime = MIMES.get(image.format or "")
            if mime is None:  # a JPEG file that Pillow opens as MPO, as some cameras write it
                raise _refusal(
                    f"is a file of several pictures ({image.format}): save one as PNG or JPEG"
                )
            if width * height > MAX_IMAGE_PIXELS:
                raise _refusal(
                    f"is {width} x {height}; at most {MAX_IMAGE_PIXELS} pixels are sent: make it "
                    "smaller"
                )
            if image.getexif().get(_ORIENTATION, 1) != 1:
                raise _refusal("is stored turned (EXIF orientation): save it upright")
            image.load()
    except EnvironmentFailure:
        raise
    except Exception as e:  # Pillow raises errors of many kinds for a broken file
        raise _refusal(f"cannot be read as a PNG or JPEG file: {type(e).__name__}: {e}") from e
    return mime, width, height


def _refusal(why: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"an image that the environment shows {why}")

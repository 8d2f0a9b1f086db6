"""Images of environments are checked once, where they are made."""

import hashlib
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from rollq.env import Image, image
from rollq.errors import EnvironmentFailure
from tests.rollq_worker.pictures import file_of


@pytest.mark.parametrize(("kind", "mime"), [("PNG", "image/png"), ("JPEG", "image/jpeg")])
def test_an_image_knows_its_size_and_its_hash(kind: str, mime: str) -> None:
    data = file_of(31, 17, kind=kind)
    found = Image(data).reference
    assert (found.width, found.height, found.bytes, found.mime) == (31, 17, len(data), mime)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert Image(data).data_url.startswith(f"data:{mime};base64,")


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", file_of(31, 17)[:-40], file_of(9, 9, kind="GIF"), "text", None]
)
def test_what_is_no_whole_png_or_jpeg_is_refused(data: Any) -> None:
    with pytest.raises(EnvironmentFailure, match="PNG or JPEG"):
        Image(data)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_damaged_files_are_refused_or_read_never_anything_else(noise: bytes, at: int) -> None:
    data = file_of(9, 7)
    try:
        found = Image(data[:at] + noise + data[at + len(noise) :]).reference
    except EnvironmentFailure:
        return
    assert found.width > 0 and found.height > 0


def test_large_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(EnvironmentFailure, match="11 x 10; at most 100 pixels"):
        Image(file_of(11, 10))
    monkeypatch.setattr(image, "MAX_IMAGE_BYTES", 100)
    with pytest.raises(EnvironmentFailure, match="at most 100 are sent"):
        Image(file_of(11, 10))


def test_a_file_of_several_pictures_is_refused() -> None:
    file, one = io.BytesIO(), Pillow.new("RGB", (8, 8))
    one.save(file, "MPO", save_all=True, append_images=[one])
    with pytest.raises(EnvironmentFailure, match="several pictures"):
        Image(file.getvalue())


def test_one_that_is_stored_turned_is_refused() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(file, "JPEG", exif=exif)
    with pytest.raises(EnvironmentFailure, match="save it upright"):
        Image(file.getvalue())

"""Files in and out of containers, as tars."""

import io
import tarfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollq.errors import EnvironmentFailure

if TYPE_CHECKING:
    from docker.models.containers import Container as EngineContainer

LARGEST_FILE = 16_000_000
"""Number of bytes of a file that may be downloaded, with its head."""


def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """A filter for files that are put in."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def folders_for_all(paths: Sequence[str]) -> bytes:
    """A tar of these empty folders, in which every user may write."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path in paths:
            entry = tarfile.TarInfo(path.strip("/"))
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o777
            tar.addfile(entry)
    return made.getvalue()


def read(container: "EngineContainer", path: str) -> bytes:
    """The content of a file. Raises FileNotFoundError where there is none."""
    import docker

    packed = io.BytesIO()
    try:
        parts, _ = container.get_archive(path)
    except docker.errors.NotFound as e:
        container.reload()  # raises the same where the container has gone
        raise FileNotFoundError(path) from e
    for part in parts:
        packed.write(part)
        if packed.tell() > LARGEST_FILE:
            raise EnvironmentFailure(
                f"{path} has more than {LARGEST_FILE} bytes, and no more can be copied out"
            )
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        first = tar.next()
        # no link, which may lead to itself
        file = tar.extractfile(first) if first and first.isreg() else None
        if file is None:
            raise EnvironmentFailure(f"{path} is not a regular file")
        return file.read()

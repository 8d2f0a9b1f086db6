"""Files in and out of containers, as tars. Tars that come out of one are the policy's."""

import io
import tarfile
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from rollq.errors import EnvironmentFailure

if TYPE_CHECKING:
    from docker.models.containers import Container as EngineContainer

LARGEST_FILE = 16_000_000
"""Number of bytes of a file that may be downloaded, with its head."""
LARGEST_COPY = 256 << 20
"""Number of bytes that may be copied from one container to another."""


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
    packed = io.BytesIO()
    pack(container, path, LARGEST_FILE, packed)
    with tarfile.open(fileobj=packed) as tar:
        first = tar.next()
        # no link, which may lead to itself
        file = tar.extractfile(first) if first and first.isreg() else None
        if file is None:
            raise EnvironmentFailure(f"{path} is no file")
        return file.read()


def pack(
    container: "EngineContainer",
    path: str,
    limit: int,
    into: IO[bytes],
) -> None:
    """Write a file or folder down as a tar. Raises FileNotFoundError where there is none."""
    import docker

    try:
        parts, _ = container.get_archive(path)
    except docker.errors.NotFound as e:
        container.reload()  # raises the same where the container has gone
        raise FileNotFoundError(path) from e
    for part in parts:
        into.write(part)
        if into.tell() > limit:
            raise EnvironmentFailure(
                f"{path} has more than {limit} bytes, and no more can be copied out"
            )
    into.seek(0)


def without_ways_out(packed: IO[bytes], into: IO[bytes]) -> None:
    """The tar again, without special files, and without links that would make the policy's files
    those of the other container.

    A link that has no `..` and lies in a folder leads into that folder, too.
    """
    names = set()
    with tarfile.open(fileobj=packed) as tar, tarfile.open(fileobj=into, mode="w") as kept:
        for entry in tar:
            stays = "/" in entry.name and not {"", ".."} & set(entry.linkname.split("/"))
            if (
                entry.isreg()
                or entry.isdir()
                or (entry.issym() and stays)
                or (entry.islnk() and entry.linkname in names)
            ):
                names.add(entry.name)
                entry.mode &= 0o777
                kept.addfile(entry, tar.extractfile(entry) if entry.isreg() else None)
    into.seek(0)

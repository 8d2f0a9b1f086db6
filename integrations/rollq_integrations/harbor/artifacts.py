"""Files of one sandbox in another one. They are the policy's: regular files, folders, and links to
these alone.
"""

import itertools
import os
import secrets
import shutil
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from string import ascii_lowercase
from typing import IO

from rollq.env import Sandbox
from rollq.errors import EnvironmentFailure

LARGEST_COPY = 256 << 20
"""Number of bytes that may be copied from one sandbox to another."""
PART = 15_000_000
"""Number of bytes of one download; a sandbox gives at most 16 MB."""
COPY_S = 120.0
"""Longest packing in seconds."""
NOTHING = 3
PACK = (
    f'[ -e "$1" ] || [ -L "$1" ] || exit {NOTHING}; '
    'set -e; umask 77; mkdir "$0"; cd "$(dirname "$1")"; '
    f'tar -cf - -- "$(basename "$1")" | head -c {LARGEST_COPY + 1} | split -b {PART} - "$0/"'
)
"""Packs a file or folder into parts, which lie in a new folder as `aa`, `ab` and so on."""


def copy(path: str, source: Sandbox, target: Sandbox) -> None:
    """Puts the file or folder of that path into another sandbox, at the same path, without links
    that leave it and special files. Nothing happens where there is none.
    """
    parts = f"/tmp/rollq-{secrets.token_hex(8)}"
    result = source.run(["sh", "-c", PACK, parts, path], seconds=COPY_S, user="root")
    if result.code == NOTHING:
        return
    if result.code or result.stopped:
        raise EnvironmentFailure(f"a copy of {path}: {result.output[-2000:]} {result.stopped}")
    with tempfile.TemporaryFile() as packed, tempfile.TemporaryDirectory() as folder:
        _join(source, parts, packed)
        source.run(["rm", "-rf", parts], user="root")
        if packed.tell() > LARGEST_COPY:
            raise EnvironmentFailure(
                f"{path} has more than {LARGEST_COPY} bytes, and no more can be copied out"
            )
        packed.seek(0)
        try:
            unpack(packed, Path(folder))
        except (tarfile.TarError, OSError, ValueError, RuntimeError) as e:  # the policy wrote it
            raise EnvironmentFailure(f"a copy of {path}: {e} {result.output[-2000:]}") from e
        file = Path(folder, Path(path).name)
        if file.exists():
            target.upload(file, path.rstrip("/"))


def _join(source: Sandbox, parts: str, into: IO[bytes]) -> None:
    with suppress(FileNotFoundError):
        for letters in itertools.product(ascii_lowercase, repeat=2):
            into.write(source.download(f"{parts}/{''.join(letters)}"))


def unpack(packed: IO[bytes], folder: Path) -> None:
    """Unpacks the tar without special files, and without links that would make the policy's files
    those of the other sandbox.

    A link that has no `..` and lies in a folder leads into that folder, too.
    """
    kept = set()
    with tarfile.open(fileobj=packed, mode="r:") as tar:
        for entry in tar:
            if not _is_inside(folder, entry.name):
                continue
            place = folder / entry.name
            if entry.isdir():
                place.mkdir(exist_ok=True)
            elif entry.isreg() and not entry.issparse():  # its holes would be written out
                _write(tar, entry, place)
            elif entry.issym():
                if "/" in entry.name and not {"", ".."} & set(entry.linkname.split("/")):
                    place.symlink_to(entry.linkname)
            elif entry.islnk() and entry.linkname in kept:
                place.hardlink_to(folder / entry.linkname)
            if os.path.lexists(place):
                kept.add(entry.name)


def _is_inside(folder: Path, name: str) -> bool:
    """True if the entry's folder has been unpacked, and no link leads there."""
    parent = Path(name).parent
    no_ways_out = not {"", ".."} & set(name.split("/"))
    return (
        no_ways_out
        and (folder / parent).resolve() == folder.resolve() / parent
        and (folder / parent).is_dir()
    )


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, place: Path) -> None:
    content = tar.extractfile(entry)
    assert content is not None, "it is a regular file"
    with place.open("wb") as file:
        shutil.copyfileobj(content, file)
    place.chmod(entry.mode & 0o777 | 0o600)

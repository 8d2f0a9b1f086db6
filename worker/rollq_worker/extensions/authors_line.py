"""The line of an author's own code in a traceback or a stack."""

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import rollq
import rollq_worker

OURS = tuple(str(Path(package.__path__[0])) for package in (rollq, rollq_worker))
"""Folders whose lines in a traceback are not the author's, beside the standard library."""


def line_of(error: BaseException) -> str:
    """The author's line that raised it; "" without one."""
    frames = traceback.extract_tb(error.__traceback__)
    return authors_line((frame.filename, frame.lineno or 0) for frame in frames)


def authors_line(frames: Iterable[tuple[str, int]]) -> str:
    """The innermost line in the folder of the author's outermost one, because what that calls may
    be a library's. The innermost of the `frames` is the last one.
    """
    theirs = [frame for frame in frames if not _is_ours(frame[0])]
    own = [frame for frame in theirs if Path(frame[0]).parent == Path(theirs[0][0]).parent]
    return "{}:{}".format(*own[-1]) if own else ""


def _is_ours(file: str) -> bool:
    in_library = file.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in file
    return in_library or file.startswith((*OURS, "<"))

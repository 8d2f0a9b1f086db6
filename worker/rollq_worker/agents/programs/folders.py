"""The folder in which an agent's command works: empty, its own, and at the same path in every
attempt of a job.

Agents tell the model where they are. So an attempt elsewhere could not repeat the requests of the
one before.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path


class AgentFolder:
    """A folder that is locked while it is in use. The rest of a killed worker at its path is
    removed.
    """

    def __init__(self, job_id: str) -> None:
        name = f"rollq-agent-{sha256(job_id.encode()).hexdigest()[:16]}"
        self.path = Path(tempfile.gettempdir(), name)
        self._lock = _make(self.path)
        if self._lock is None:  # an attempt before may still use it, or it is somebody else's
            self.path = Path(tempfile.mkdtemp(prefix="rollq-agent-"))

    def remove(self) -> None:
        _remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _make(path: Path) -> int | None:
    """Makes the folder. Returns a descriptor that holds its lock; None where it is in use."""
    left = _locked(path)
    if left is not None:
        _remove(path)
        os.close(left)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        return None
    return _locked(path)


def _remove(path: Path) -> None:
    """Removes the folder, also where the agent has made parts of it read-only."""
    if os.geteuid():  # root needs no mode, and must not follow a link that an agent puts there
        _make_writable(path)
    shutil.rmtree(path, ignore_errors=True)


def _make_writable(path: Path) -> None:
    with suppress(OSError):
        os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            with suppress(OSError):
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)


def _locked(path: Path) -> int | None:
    """A descriptor of a folder of ours that nobody uses."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(folder)
        else:
            return folder
    return None

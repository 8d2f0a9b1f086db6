"""Images of the engines: built from a folder, or fetched, once for each host."""

import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING

from rollq.errors import EnvironmentFailure
from rollq_integrations.sandbox.containers.engine import failures
from rollq_integrations.sandbox.containers.hosts import Host

if TYPE_CHECKING:
    import docker

LOG_LINES = 40
"""Number of lines of a build's log that a failure shows at most."""
_locks: defaultdict[tuple[Host, str], threading.Lock] = defaultdict(threading.Lock)


def have_image(host: Host, image: str, folder: Path | None, seconds: float) -> None:
    """Has the host's engine build an image of the folder with its Dockerfile, or fetch it where
    there is no folder, unless it has one of that name. Where several threads ask for one, it comes
    once. Raises EnvironmentFailure, also for a build that writes on after so many seconds, or is
    silent for as long.
    """
    import docker

    of_folder = f" of {folder}" if folder else ""
    with _locks[host, image], failures(f"the image {image}{of_folder}"):
        try:
            host.client.images.get(image)
        except docker.errors.ImageNotFound:
            if folder is None:
                host.client.images.pull(image)
            else:
                _build(host.client, folder, image, seconds)


def _build(engine: "docker.DockerClient", folder: Path, tag: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    log: deque[str] = deque(maxlen=LOG_LINES)
    lines = engine.api.build(
        path=str(folder), tag=tag, rm=True, forcerm=True, timeout=int(seconds) + 1, decode=True
    )
    for line in lines:
        problem = line.get("error", "")
        log.append(line.get("stream") or problem)
        if time.monotonic() > until:
            problem = f"its build took longer than {seconds:g} s"
        if problem:
            text = "".join(log).strip()[-2000:]
            raise EnvironmentFailure(
                f"the image {tag} of {folder}: {problem}; its log ends with:\n{text}"
            )

"""A tunnel to the socket of an engine on another host, by the system's `ssh`, which reads its own
settings and keys.

`ssh://USER@HOST:PORT/SOCKET` is Podman's form of an address; without a socket it is Docker's. A
tunnel ends with its worker, also one that is killed. It does not know engines.
"""

import atexit
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

SCHEME = "ssh://"
DOCKERS_SOCKET = "/var/run/docker.sock"
START_S = 20.0
"""Longest start in seconds."""
SSH_OPTIONS = (
    "BatchMode=yes ExitOnForwardFailure=yes ServerAliveInterval=10 StreamLocalBindUnlink=yes"
)


class Tunnel:
    """Starts with `open`, and again where it has ended."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        if not url.hostname:
            raise ValueError(f"{address} names no host")
        user = f"{url.username}@" if url.username else ""
        # `hostname` is in small letters, and the names of ssh's settings may not be
        start = url.netloc.lower().index(url.hostname.lower(), url.netloc.rfind("@") + 1)
        host = url.netloc[start : start + len(url.hostname)]
        self._target = [*(["-p", str(url.port)] if url.port else []), f"{user}{host}"]
        self._folder = tempfile.mkdtemp(prefix="rollq-ssh-")
        self._socket = Path(self._folder, "engine.sock")
        self._forward = f"{self._socket}:{url.path.rstrip('/') or DOCKERS_SOCKET}"
        self._process: subprocess.Popen[bytes] | None = None
        self._failed_at = 0.0
        self._problem = ""
        self._lock = threading.Lock()
        self.address = f"unix://{self._socket}"
        atexit.register(self.close)

    def open(self) -> None:
        """Opens a tunnel unless there is one. Raises ConnectionError, with the words of ssh, where
        it does not open. Threads that wait for one attempt share its failure.
        """
        asked = time.monotonic()
        with self._lock:
            if asked < self._failed_at:
                raise ConnectionError(self._problem)
            if self._process is None or self._process.poll() is not None:
                self._end()
                try:
                    self._process = self._start()
                except ConnectionError as e:
                    self._failed_at = time.monotonic()
                    self._problem = str(e)
                    raise

    def close(self) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._socket.unlink(missing_ok=True)
        words = Path(self._folder, "words")
        options = [word for option in SSH_OPTIONS.split() for word in ("-o", option)]
        with words.open("wb") as stderr:
            process = subprocess.Popen(
                # the command over there ends when the pipe does, which ends with this process
                ["ssh", "-T", *options, "-L", self._forward, *self._target, "cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        until = time.monotonic() + START_S
        while not self._listens():
            if process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
                continue
            process.kill()
            process.communicate()
            raise ConnectionError(words.read_text(errors="replace") or "ssh takes too long")
        return process

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self._socket)) == 0

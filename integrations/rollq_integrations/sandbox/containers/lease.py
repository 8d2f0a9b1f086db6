"""The lease of containers: each reads lines from its worker, and ends when they end. It knows
nothing of commands.

The main process of a container is a shell that uses nothing of its image, which the policy may
change, and makes no process, for which there may be no room.
"""

import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

from rollq_integrations.sandbox.containers.engine import sweep

log = logging.getLogger(__name__)

LEASE_S = 90
"""Seconds after which a container ends that has heard nothing from its worker."""
BEAT_S = 20.0
"""Seconds between two lines to each container."""
END_PROCESSES = "USR1"
"""The signal at which the main process kills all others."""
LIVE = (
    '(n=0; trap n=0 USR2; while sleep "$0"; do n=$((n + 1)); [ $n -gt 3 ] && kill -USR2 1; done) '
    "& clock=$!; "
    'trap "caught=1; jobs >/dev/null" CHLD; '
    f'trap "caught=1; kill -9 -1" {END_PROCESSES}; trap exit USR2; '
    "while :; do caught=; if read line; then kill -USR2 $clock 2>/dev/null; "
    'else [ "$caught" ] || exit; fi; done'
)
"""Main process of a container. It ends where the lines do. A child ends it where none came within
three times the seconds that it is given. A signal interrupts `read`, too. In some shells only
`jobs` reaps orphans.
"""

SERVE = (
    'echo "127.0.0.1 $1" 2>/dev/null >>/etc/hosts; shift; '
    '{ "$@" </dev/null 2>&1; echo "[it ended with code $?]"; } | '
    "{ head -c 4000000 >/run/rollq/service; cat >/dev/null; } & "
)
"""Begins a service, and keeps its first 4 MB of output in a file. Podman's services have a file of
hosts of their own, which an image's user may not change.
"""


class Heartbeat:
    """One thread that writes a line to every container of this process now and then. Another one
    sweeps, so that an engine that is slow to do so does not cost the containers their lines.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    def join(self, name: str, connection: Any) -> None:
        with self._lock:
            self._connections[name] = connection
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rollq-containers", daemon=True
                )
                self._thread.start()
                threading.Thread(target=_sweep_for_ever, name="rollq-sweeps", daemon=True).start()

    def leave(self, name: str) -> None:
        with self._lock:  # else a line could go to another file that has its number by now
            connection = self._connections.pop(name, None)
            if connection is not None:
                connection.close()

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self._lock:
                for connection in self._connections.values():
                    with suppress(OSError, ValueError):  # it has ended
                        if hasattr(connection, "send"):  # of TLS
                            connection.send(b"\n")
                        else:
                            os.write(connection.fileno(), b"\n")


HEARTBEAT = Heartbeat()


def _sweep_for_ever() -> None:
    while True:
        try:
            sweep()
        except Exception:
            log.exception("sweeping containers failed; trying again in a minute")
        time.sleep(60.0)

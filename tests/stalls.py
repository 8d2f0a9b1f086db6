"""How long the machine stopped all processes: time that a test must grant on top of a promise in
seconds.
"""

import threading
import time

CHECK_S = 0.02
USUAL_DELAY_S = 0.05
"""Any machine may wake a thread this late."""


class Stalls:
    """The seconds lost inside the `with` block, measured by a thread that only sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="stalls")

    def __enter__(self) -> "Stalls":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        last = time.monotonic()
        while not self._over.wait(CHECK_S):
            now = time.monotonic()
            self.seconds += max(0.0, now - last - USUAL_DELAY_S)
            last = now

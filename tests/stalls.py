"""How long the machine kept everybody waiting: what a promise in seconds can demand nothing of."""

import threading
import time

LOOK_S = 0.02
USUAL_S = 0.05
"""A look may come so late on any machine."""


class Stalls:
    """Measured inside the block, by a thread that only wants to sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stalls")

    def __enter__(self) -> "Stalls":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        last = time.monotonic()
        while not self._over.wait(LOOK_S):
            now = time.monotonic()
            self.seconds += max(0.0, now - last - USUAL_S)
            last = now

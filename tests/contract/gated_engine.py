"""The replay engine with a gate: while the gate is closed, every generation stops after half of its
tokens.

So a test has all the time it needs to interrupt a turn, however busy the machine. The gate is a
file.
"""

from pathlib import Path
from typing import Any

from rollq_worker.replay_engine import generate
from rollq_worker.replay_engine.scheduler import Generation
from rollq_worker.replay_engine.server import serve

SHARE = 1 / 2
"""Share of a generation's tokens that are out as soon as it runs; the others come when the gate
opens. A half is exact in floating point, so it is the same number of tokens every time.
"""
CHECK_S = 0.05


class Gate:
    """Open until it is closed; seen by all processes that know the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def closed(self) -> bool:
        return self.path.exists()

    def close(self) -> None:
        self.path.touch()

    def open(self) -> None:
        self.path.unlink(missing_ok=True)


def main(path: str, **options: Any) -> None:
    """Serve a replay engine whose generations stop at the gate."""
    gate = Gate(Path(path))

    class GatedGeneration(Generation):
        stopped = False

        def seconds_left(self) -> float:
            self.stopped = self.stopped or gate.closed
            if self.stopped and (gate.closed or self.aborted):
                return self.seconds * (1 - SHARE)
            return 0.0 if self.stopped else super().seconds_left()

        async def wait(self, seconds: float | None) -> None:
            await super().wait(CHECK_S if self.stopped and seconds else seconds)

    generate.Generation = GatedGeneration  # type: ignore[misc]
    serve(**options)

"""The replay engine with a gate: while it is closed, every generation stands still after half of its tokens.

So an operator has all the time there is to interrupt a turn, however busy the machine. The gate is a file.
"""

from pathlib import Path
from typing import Any

from rollq_worker.replay_engine import generate
from rollq_worker.replay_engine.scheduler import Generation
from rollq_worker.replay_engine.server import serve

SHARE = 1 / 2
"""Of a generation's tokens, that are out as soon as it runs; the others come when the gate opens.
A half is exact in floating point, so that it is the same number of tokens every time."""
LOOK_S = 0.05


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


def main(gate: str, **options: Any) -> None:
    """Serve a replay engine whose generations stop at that gate."""
    at = Gate(Path(gate))

    class Held(Generation):
        held = False

        def left(self) -> float:
            self.held = self.held or at.closed
            if self.held and (at.closed or self.aborted):
                return self.seconds * (1 - SHARE)
            return 0.0 if self.held else super().left()

        async def woken(self, seconds: float | None) -> None:
            await super().woken(LOOK_S if self.held and seconds else seconds)

    generate.Generation = Held  # type: ignore[misc]
    serve(**options)

"""How many tokens the running requests may still sample, as SGLang estimates it when it admits another one.

The estimate is a ratio of what they may still sample by their own limits: the ratio falls with each decode step, and
rises when requests had to be retracted. The constants are SGLang's defaults.
"""

from rollq_worker.simulation.engine_model.seat import LARGEST_LIMIT, Seat

FIRST_RATIO = 0.7
LAST_RATIO = 0.14 * FIRST_RATIO
DECAY = (FIRST_RATIO - LAST_RATIO) / 600
"""What the ratio falls by with each decode step."""
STEPS_AFTER_RETRACTION = 20
"""Decode steps that a retraction leaves room for."""


class TokenReserve:
    """The estimate for the running requests. A limit above `LARGEST_LIMIT` counts as just that until the end."""

    def __init__(self) -> None:
        self._ratio = FIRST_RATIO
        self._open = 0
        """Tokens that the requests may still sample."""
        self._falling = 0
        """Number of requests for which that falls with each step."""
        self._running = 0
        self._limits = 0
        """Sum of the limits."""

    @property
    def tokens(self) -> float:
        return self._ratio * self._open

    def join(self, seat: Seat) -> None:
        self._change(seat, 1)

    def leave(self, seat: Seat) -> None:
        self._change(seat, -1)

    def decode(self, steps: int) -> None:
        self._open -= steps * self._falling
        self._ratio = max(LAST_RATIO, self._ratio - steps * DECAY)

    def after_retraction(self) -> None:
        """Estimate the ratio from the requests that still run."""
        sampled = self._limits - self._open
        self._ratio = min(1.0, (sampled + STEPS_AFTER_RETRACTION * self._running) / (self._limits + 1))

    def reset(self) -> None:
        self._ratio = FIRST_RATIO

    def _change(self, seat: Seat, sign: int) -> None:
        falls = seat.limit <= LARGEST_LIMIT
        self._running += sign
        self._falling += sign * falls
        self._limits += sign * min(seat.limit, LARGEST_LIMIT)
        self._open += sign * (seat.limit - seat.sampled if falls else LARGEST_LIMIT)

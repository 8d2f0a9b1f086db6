"""One call of `generate`, as it goes from try to try and from engine to engine.

It knows nothing of HTTP.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from rollq.errors import EngineFailure
from rollq_worker.protocols import SampleRequest

RETRIES = 3
"""Number of times that a request is sent again: after failures in a row, or after deaths."""


class EngineLeft(Exception):
    """The call goes on at another engine."""


@dataclass(eq=False)
class Call:
    """One call of `generate`, and its failures so far."""

    request: SampleRequest
    has_better: Callable[["Call", str], bool] = lambda call, engine: False
    """True if another engine should take the call over from the one at that address."""
    probes: bool = False
    """True if it only requests a single token, to see which weights sample it."""
    avoided: set[str] = field(default_factory=set)
    """Addresses of engines that were up and failed."""
    unavailable: int = 0
    """Number of times that the engine took no requests."""
    failed: int = 0
    """Number of times in a row that the request failed while the engine lived on."""
    connection_lost: bool = False
    """True if the last failure was a lost connection."""
    deaths: int = 0
    """Number of engines' deaths with this request in flight."""

    @property
    def key(self) -> str:
        """The job's id."""
        return self.request.key

    @property
    def check(self) -> Callable[[], None]:
        return self.request.check

    @property
    def group(self) -> str:
        """The run and the group of the job, as in `run/group`."""
        return self.key.rpartition("/")[0]

    @property
    def run(self) -> str:
        """The run of the job."""
        return self.key.partition("/")[0]

    def engine_died(self) -> None:
        """Records that the engine died, or was given up, with this request in flight.

        Raises EngineFailure after too many deaths: the request may be their cause.
        """
        self.failed = 0
        self.connection_lost = False
        self.deaths += 1
        if self.deaths > RETRIES:
            raise EngineFailure(
                f"{self.key}: engines died {self.deaths} times with this request in flight"
            )

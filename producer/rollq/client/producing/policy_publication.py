"""What a client has published, to be said again when Redis comes back without it."""

import threading
import uuid

from rollq.errors import ContractError
from rollq.job import LONGEST_VERSION
from rollq.ledger.versions import LAST_STEP, Versions
from rollq.numbers import whole_number


def check_version(run: str, weight_version: object) -> None:
    """Raises ContractError for what is no weight version's name."""
    if not isinstance(weight_version, str) or not 0 < len(weight_version) <= LONGEST_VERSION:
        raise ContractError(
            f"run {run}: a weight version is a text of 1 to {LONGEST_VERSION} characters, "
            f"not {weight_version!r:.300}"
        )


class PolicyPublication:
    """One publication. Each call says it; the ledger counts it once. Threads may call it."""

    def __init__(self, versions: Versions, step: int, weight_version: str) -> None:
        """Raises ContractError for a wrong step or version."""
        whole_number(f"run {versions.run}: the step of a policy", step, 0, LAST_STEP - 1)
        check_version(versions.run, weight_version)
        self.step, self.number = step, 0
        """`number`: how many publications the run had with this one; 0: it was not said yet."""
        self._versions, self._version, self._token = versions, weight_version, uuid.uuid4().hex
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Raises what `Versions.publish` raises."""
        with self._lock:
            self.number = self._versions.publish(self.step, self._version, self._token, self.number)

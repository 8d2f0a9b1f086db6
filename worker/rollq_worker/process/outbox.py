"""Sends the jobs that the reaper finds due, in a thread of its own.

A broker that is slow or does not answer must not hold up the reaper, because its silence would look
like an outage of Redis. A job that is not sent is due again a few seconds later.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from rollq.client.producing.broker import Broker
from rollq.errors import RollqError
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import JobMessage
from rollq.servers.retry import CONNECTION_ERRORS

log = logging.getLogger(__name__)


class Outbox:
    """One broker, one call at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sending: threading.Thread | None = None
        self._sent = 0
        self._counts: Mapping[str, int] = {}
        self._counted = float("-inf")

    @property
    def waiting(self) -> Mapping[str, int]:
        """Number of messages at the broker for each queue (`Job.queue`) that was counted in the
        last seconds.
        """
        if time.monotonic() - self._counted < 5.0:
            return self._counts
        return {}

    @property
    def busy(self) -> bool:
        """True if the broker has not finished with an earlier call."""
        return self._sending is not None and self._sending.is_alive()

    def send(
        self,
        due: Sequence[tuple[Ledger, Sequence[JobMessage]]],
        queues: Collection[str],
        until: float,
    ) -> int:
        """Sends until that time (`time.monotonic`) and confirms the jobs that the broker took; then
        counts the messages of these queues.

        Returns the number of jobs that were sent: 0 when the broker is busy for longer.
        """
        if self.busy or not (due or queues):
            return 0
        self._sent = 0
        self._sending = threading.Thread(
            target=self._send, args=(due, queues, until), name="rollq-outbox", daemon=True
        )
        self._sending.start()
        self._sending.join(max(0.0, until - time.monotonic()))
        return 0 if self.busy else self._sent

    def _send(
        self,
        due: Sequence[tuple[Ledger, Sequence[JobMessage]]],
        queues: Collection[str],
        until: float,
    ) -> None:
        for ledger, messages in due:
            if time.monotonic() >= until:
                break
            sent = self._broker.send(messages)
            try:
                ledger.confirm(sent)
            except (RollqError, *CONNECTION_ERRORS) as e:  # they are sent again
                log.warning(
                    "run %s: messages are not confirmed: %s: %s", ledger.run, type(e).__name__, e
                )
            self._sent += len(sent)
        counts = self._broker.backlog(queues)
        self._counts = counts or {}
        self._counted = time.monotonic()

"""Publishes Celery messages that carry a job id.

A message that is not published here costs only time, because the workers' reapers publish it from the ledger's outbox.
So a light client needs no Celery, and failures of the broker are not raised.
"""

import importlib.util
import threading
import time
from collections.abc import Sequence
from typing import Any

from rollq.ledger.keys import QUEUE

TASK = "rollq.play"
"""The task's name; its one argument is the job id."""
PAUSE_S = 5.0
"""Seconds without another try after a failure."""


class Publisher:
    """Publishes to one broker. Safe to use from many threads."""

    def __init__(self, broker_url: str) -> None:
        self.broker_url = broker_url
        self.error: str | None = None
        """The exception type of the last failure; None once publishing works."""
        self._app: Any = None
        self._paused_until = 0.0
        self._lock = threading.Lock()

    @property
    def available(self) -> bool:
        """Whether Celery is installed."""
        return importlib.util.find_spec("celery") is not None

    def publish(self, job_ids: Sequence[str]) -> list[str]:
        """Publishes a message for each id. Returns the ids that the broker took. Raises nothing."""
        published: list[str] = []
        if not job_ids or time.monotonic() < self._paused_until or not self.available:
            return published
        try:
            app = self._connected()
            with app.producer_pool.acquire(block=True) as producer:
                for job_id in job_ids:
                    app.send_task(
                        TASK,
                        args=[job_id],
                        queue=QUEUE,
                        argsrepr=job_id,
                        kwargsrepr="",
                        ignore_result=True,
                        producer=producer,
                        retry=False,
                    )
                    published.append(job_id)
            self.error = None
        except Exception as e:  # Celery, kombu and its transports may raise anything
            self.error = type(e).__name__  # its text may hold the broker's password
            self._paused_until = time.monotonic() + PAUSE_S
        return published

    def backlog(self) -> int | None:
        """Number of messages that wait at the broker; None when the broker cannot be asked."""
        if time.monotonic() < self._paused_until or not self.available:
            return None
        try:
            with self._connected().connection_for_write() as connection:
                return int(connection.default_channel.queue_declare(queue=QUEUE, passive=True).message_count)
        except Exception as e:  # as above
            return 0 if _is_missing_queue(e) else None

    def close(self) -> None:
        with self._lock:
            if self._app is not None:
                self._app.close()
                self._app = None

    def _connected(self) -> Any:
        with self._lock:
            if self._app is None:
                self._app = _app(self.broker_url)
            return self._app


def _app(broker_url: str) -> Any:
    import celery

    app = celery.Celery("rollq-publisher", broker=require_certificate(broker_url), set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_create_missing_queues=True,
        task_send_sent_event=True,  # Flower shows when a job was sent
        broker_connection_timeout=3.0,
        broker_transport_options={"socket_timeout": 5.0, "socket_connect_timeout": 3.0, "max_retries": 1},
    )
    return app


def require_certificate(broker_url: str) -> str:
    """The address, changed so that kombu checks the server's TLS certificate unless the address says otherwise."""
    scheme, _, rest = broker_url.partition("://")
    if scheme != "rediss" or "ssl_cert_reqs=" in rest:
        return broker_url
    return f"{broker_url}{'&' if '?' in rest else '?'}ssl_cert_reqs=required"


def _is_missing_queue(error: Exception) -> bool:
    """Redis deletes an empty list, so an empty queue is a missing one."""
    return getattr(error, "reply_code", None) == 404 or "NOT_FOUND" in str(error)

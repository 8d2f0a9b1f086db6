"""Sends Celery messages that carry a job id.

A message that is not sent here costs only time, because the workers' reapers send it from the
ledger's outbox. So a light client needs no Celery, and failures of the broker are not raised.
"""

import importlib.util
import socket
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from rollq.job import QUEUE
from rollq.ledger.keys import celery_queue
from rollq.ledger.replies import JobMessage
from rollq.urls import broker_options

TASK = "rollq.play"
"""The task's name; its one argument is the job id."""
HEADERS = ("lang", "task", "id", "argsrepr")
"""Headers that a worker needs, and the job id for Flower."""
PAUSE_S = 5.0
"""Seconds without another try after a failure."""
SOCKET_TIMEOUT_S = 5.0
"""Seconds to wait for a reply of the broker. A worker's main thread waits no longer than this for
any reply.
"""
CONNECT_TIMEOUT_S = 3.0
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}
"""A connection to a machine that is gone is lost after 5 s + 3 * 3 s when it is idle, and 15 s
after bytes that are not acknowledged. Options that the system lacks are left out.
"""


class Broker:
    """One broker. Safe to use from many threads."""

    def __init__(self, broker_url: str) -> None:
        self.broker_url = broker_url
        self.error: str | None = None
        """The exception type of the last failure; None once sending works."""
        self._app: Any = None
        self._paused_until = 0.0
        self._lock = threading.RLock()  # a handler of a signal may close it meanwhile
        self._asking: Any = None
        """The connection that counts messages. It is kept, because a reaper counts every second."""
        self._asking_lock = threading.RLock()

    @property
    def available(self) -> bool:
        """True if Celery is installed."""
        return importlib.util.find_spec("celery") is not None

    def send(self, messages: Sequence[JobMessage]) -> list[str]:
        """Sends these messages, in this order. Returns the job ids that the broker took. Raises
        nothing.
        """
        sent: list[str] = []
        if not messages or self._paused:
            return sent
        try:
            app = self._ensure_app()
            with app.producer_pool.acquire(block=True) as producer:
                for message in messages:
                    app.send_task(
                        TASK,
                        args=[message.job_id],
                        queue=celery_queue(message.queue),
                        priority=message.priority,
                        producer=producer,
                        retry=False,
                    )
                    sent.append(message.job_id)
            self.error = None
        except Exception as e:  # Celery, kombu and its transports may raise anything
            self.error = type(e).__name__  # its text may hold the broker's password
            self._paused_until = time.monotonic() + PAUSE_S
            self._stop_asking()
        return sent

    def backlog(self, queues: Collection[str] = (QUEUE,)) -> dict[str, int] | None:
        """Number of messages that wait at the broker, for each of these queues (`Job.queue`). None
        when the broker cannot be asked.
        """
        if self._paused:
            return None
        with self._asking_lock:
            try:
                if self._asking is None:
                    self._asking = self._ensure_app().connection_for_write()
                channel = self._asking.default_channel
                return {queue: _size(channel, celery_queue(queue)) for queue in queues}
            except Exception:  # as above
                self._stop_asking()
                return None

    def close(self) -> None:
        self._stop_asking()
        with self._lock:
            if self._app is not None:
                self._app.close()
                self._app = None

    @property
    def _paused(self) -> bool:
        return time.monotonic() < self._paused_until or not self.available

    def _ensure_app(self) -> Any:
        with self._lock:
            if self._app is None:
                self._app = _app(self.broker_url)
            return self._app

    def _stop_asking(self) -> None:
        with self._asking_lock:
            if self._asking is not None:
                self._asking.release()
                self._asking = None


def _app(broker_url: str) -> Any:
    import celery
    from celery.app import amqp

    class Amqp(amqp.AMQP):  # type: ignore[misc]
        """Leaves out what is empty or twice in Celery's messages: there is one for each queued job,
        and Redis keeps them in memory.
        """

        def as_task_v2(
            self, id: str, name: str, args: list[str], *more: Any, **options: Any
        ) -> Any:
            options |= {"argsrepr": args[0], "kwargsrepr": ""}
            message = super().as_task_v2(id, name, args, *more, **options)
            headers = {name: message.headers[name] for name in HEADERS}
            return message._replace(headers=headers, properties={}, body=(args, {}, {}))

    app = celery.Celery("rollq-broker", amqp=Amqp, set_as_current=False)
    app.conf.update(broker_settings(broker_url, max_retries=1))
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE,
        task_create_missing_queues=True,
        task_send_sent_event=True,  # Flower shows when a job was sent
    )
    return app


def broker_settings(broker_url: str, **options: Any) -> dict[str, Any]:
    """Celery's settings for this broker. With them a connection that has died in silence is given
    up within seconds.

    `options` are further transport options. Raises SettingsError for an address that cannot be a
    broker's.
    """
    address, own = broker_options(broker_url)
    keepalive = {
        getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)
    }
    return {
        "broker_url": require_certificate(address),
        "broker_connection_timeout": CONNECT_TIMEOUT_S,
        "broker_transport_options": {
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_keepalive": True,
            "socket_keepalive_options": keepalive,
            **own,
            **options,
        },
    }


def require_certificate(broker_url: str) -> str:
    """The address, changed so that kombu checks the server's TLS certificate unless the address
    says otherwise.
    """
    scheme, _, rest = broker_url.partition("://")
    if scheme != "rediss" or "ssl_cert_reqs=" in rest:
        return broker_url
    return f"{broker_url}{'&' if '?' in rest else '?'}ssl_cert_reqs=required"


def _size(channel: Any, queue: str) -> int:
    try:
        return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except Exception as e:
        # Redis deletes an empty list, so an empty queue is a missing one.
        if getattr(e, "reply_code", None) == 404 or "NOT_FOUND" in str(e):
            return 0
        raise

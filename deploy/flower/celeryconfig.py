"""Celery's settings in Flower's process: the broker that rollq's workers use, and its queues."""

from kombu import Queue

from rollq.client.producing.broker import broker_settings
from rollq.ledger.keys import celery_queue
from rollq.settings import Settings

_settings = Settings.from_env()
globals().update(broker_settings(_settings.broker_url))
if broker_url.startswith("rediss"):  # noqa: F821
    broker_use_ssl = {"ssl_cert_reqs": "required"}  # for the page of the queues
task_queues = [Queue(celery_queue(queue)) for queue in _settings.queues]

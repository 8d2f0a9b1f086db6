"""Messages that do not belong on the queue, a second message for every job, and a rate limit for
all workers.
"""

import json

import celery
import redis

from rollq.job import QUEUE
from tests.chaos.fault_run import FaultRun
from tests.chaos.processes import RUN

ENVELOPE = {
    "body": "W10=",
    "headers": {"id": "x", "task": "rollq.play"},
    "content-type": "application/json",
    "properties": {
        "delivery_tag": "t",
        "body_encoding": "base64",
        "delivery_info": {"exchange": QUEUE, "routing_key": QUEUE},
    },
}
"""An empty list, where a task's message has three parts."""
JUNK = (b"x", b"[]", b"\xff\xfe", json.dumps(ENVELOPE).encode())
"""What is no message of Celery's: each ends a worker."""
WRONG: tuple[list[object], ...] = (
    [],
    [None],
    ["no/such"],
    ["junk/shop.train.0/99"],
    [{"a": 1}],
    ["r/g/0", 1],
    ["\x00"],
    [f"{RUN}/x/0"],
)


def send_junk_messages(run: FaultRun) -> int:
    """Send messages that no worker may care about, and every job's message again. Returns how many
    messages.
    """
    with redis.Redis.from_url(run.redis_url) as connection:
        connection.rpush(QUEUE, b'{"body": "!!!"}')
    jobs = [[job] for job in run.rng.sample(sorted(run.expected), len(run.expected))]
    with celery.Celery(broker=run.redis_url, set_as_current=False) as app:
        app.conf.broker_pool_limit = None
        for args in (*WRONG, *jobs):
            app.send_task("rollq.play", args=args, queue=QUEUE)
        app.send_task("no.such.task", args=[1], queue=QUEUE)
        for unwanted in (
            {"countdown": 3600},
            {"expires": 3600},
            {"link": app.signature("no.such.task")},
        ):
            app.send_task("rollq.play", args=jobs[0], queue=QUEUE, **unwanted)
        app.control.rate_limit("rollq.play", "1/h")
    return 6 + len(WRONG) + len(jobs)

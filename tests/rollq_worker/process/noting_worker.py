"""A real Celery worker that plays nothing: it writes the ids of the jobs that it gets, one a line.

Arguments: the broker's address, slots, seconds that a job takes, queues. Its times are a third of
production's. It also writes `loop stuck`, `loop turns` and `broken`.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from rollq.job import Job
from rollq.settings import Settings
from rollq_worker.process import celery_app

SCALE = 3
URL, SLOTS, SECONDS, QUEUES = (
    sys.argv[1],
    int(sys.argv[2]),
    float(sys.argv[3]),
    tuple(sys.argv[4].split(",")),
)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def run(job_id: str, on_claim: Callable[[Any], object]) -> dict[str, Any]:
    run, group, sample = job_id.split("/")
    if job_id.endswith("refused/0"):
        return {"stop": "refused: leased"}
    on_claim(
        SimpleNamespace(
            job=Job(run=run, group=group, sample=int(sample), env="shop", task=17), number=2
        )
    )
    say(job_id)
    time.sleep(SECONDS)
    if job_id.endswith("dead/0"):
        return {"stop": "failed", "then": "dead", "why": "env: ValueError: boom\nTraceback"}
    return {"stop": "done", "reward": 1.0, "turns": 9, "tokens": 1834}


def watch(clock: celery_app.LoopClock) -> None:
    alive = True
    while True:
        time.sleep(0.1)
        if clock.is_alive() != alive:
            alive = not alive
            say("loop turns" if alive else "loop stuck")


def on_ready(consumer: Any) -> None:
    clock = celery_app.LoopClock()
    clock.start(consumer.timer)
    threading.Thread(target=watch, args=[clock], daemon=True).start()
    say("ready")


if __name__ == "__main__":
    celery_app.TRANSPORT_OPTIONS["health_check_interval"] = celery_app.CHECK_EVERY_S // SCALE
    celery_app.STUCK_S = celery_app.STUCK_S / SCALE / 2
    settings = Settings(broker_url=URL, concurrency=SLOTS, queues=QUEUES)
    app = celery_app.make_app(settings, SimpleNamespace(run=run))  # type: ignore[arg-type]
    worker = celery_app.make_worker(
        app, settings, f"rollq@{os.getpid()}", on_ready, partial(say, "broken")
    )
    worker.start()
    sys.exit(worker.exitcode)

"""A real Celery worker that plays nothing: it writes the ids of the jobs that it gets, one a line.

Arguments: the broker's address, slots, seconds that a job takes, queues. Its times are a third of production's. It also
writes `loop stuck` and `loop turns`.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery import signals

from rollq.job import Job
from rollq.settings import Settings
from rollq_worker.process import celery_app, kombu_transport, loop_clock

SCALE = 3
URL, SLOTS, SECONDS, QUEUES = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), tuple(sys.argv[4].split(","))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def run(job_id: str, on_claim: Callable[[Any], object]) -> dict[str, Any]:
    run, group, sample = job_id.split("/")
    if job_id.endswith("refused/0"):
        return {"stop": "refused: leased"}
    on_claim(SimpleNamespace(job=Job(run=run, group=group, sample=int(sample), env="shop", task=17), number=2))
    say(job_id)
    time.sleep(SECONDS)
    if job_id.endswith("dead/0"):
        return {"stop": "failed", "then": "dead", "why": "env: ValueError: boom\nTraceback"}
    return {"stop": "done", "reward": 1.0, "turns": 9, "tokens": 1834}


def watch(clock: loop_clock.LoopClock) -> None:
    alive = True
    while True:
        time.sleep(0.1)
        if clock.is_alive() != alive:
            alive = not alive
            say("loop turns" if alive else "loop stuck")


def on_ready(sender: Any, **_: object) -> None:
    signals.worker_ready.disconnect(on_ready)
    clock = loop_clock.LoopClock()
    clock.start(sender.hub)
    threading.Thread(target=watch, args=[clock], daemon=True).start()
    say("ready")


if __name__ == "__main__":
    kombu_transport.Transport.brpop_timeout = kombu_transport.WAIT_S // SCALE
    kombu_transport.OPTIONS["health_check_interval"] = kombu_transport.CHECK_EVERY_S // SCALE
    loop_clock.LIMIT_S = loop_clock.LIMIT_S / SCALE / 2
    settings = Settings(broker_url=URL, concurrency=SLOTS, queues=QUEUES)
    app = celery_app.make_app(settings, SimpleNamespace(run=run))  # type: ignore[arg-type]
    worker = celery_app.make_worker(app, settings, f"rollq@{os.getpid()}")
    signals.worker_ready.connect(on_ready, weak=False)
    worker.start()
    sys.exit(worker.exitcode)

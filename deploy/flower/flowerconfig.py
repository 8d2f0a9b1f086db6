"""Flower's settings: what its pages show, who may see them, and how much is kept.

Flower only shows: rollq's workers take no orders over the broker, so that everything that would
give them one is off.
"""

import os
import sys
from pathlib import Path

import tornado.web
from flower.inspector import Inspector
from flower.views.monitor import Metrics
from flower.views.workers import WorkerView


def _login() -> str:
    path = os.environ.get("FLOWER_BASIC_AUTH_FILE")
    try:
        found = Path(path).read_text().strip() if path else os.environ.get("FLOWER_BASIC_AUTH", "")
    except OSError as e:
        sys.exit(f"FLOWER_BASIC_AUTH_FILE: {path} cannot be read: {e.strerror}")
    user, _, password = found.partition(":")
    if not user or len(password) < 12:
        sys.exit(
            "FLOWER_BASIC_AUTH, or the file FLOWER_BASIC_AUTH_FILE: USER:PASSWORD, of at "
            "least 12 characters"
        )
    return found


def _tasks_of_worker(self: WorkerView, name: str) -> None:
    """Flower's page of a worker asks the worker, which does not answer. Its tasks are shown
    instead.
    """
    self.redirect(f"{self.reverse_url('tasks')}?worker={tornado.escape.url_escape(name)}")


basic_auth = [_login()]
read_only = True
enable_events = False  # workers send events unasked
tasks_columns = "state,args,result,runtime,worker,received,uuid"
max_tasks = 20_000
max_workers = 1_000
purge_offline_workers = 60
# Rollouts take seconds to minutes; the default buckets end at 10 s.
task_runtime_metric_buckets = [1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0]

Metrics.get = tornado.web.authenticated(
    Metrics.get
)  # they name workers; Flower shows them to everyone
WorkerView.get = tornado.web.authenticated(_tasks_of_worker)
Inspector.inspect_methods = Inspector.task_inspect_methods = ()

"""The sandboxes of a task: the agent's, and services beside it. It knows no tests."""

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

from rollq.env import Sandbox, SandboxSpec
from rollq.errors import EnvironmentFailure
from rollq_integrations.harbor.harbor_form import ARTIFACTS
from rollq_integrations.harbor.task_folder import Healthcheck, TaskFolder
from rollq_integrations.sandbox import MAKER, as_told, make_sandbox

AGENT_LOGS = "/logs/agent"
LOGS = "/logs/verifier"
SOLUTION = "/solution"
FOLDERS = (ARTIFACTS, AGENT_LOGS, LOGS, SOLUTION)
"""Folders of every sandbox but services, in which every user may write."""


class Room:
    """Raises EnvironmentFailure where one of the sandboxes does not become healthy. Without
    services and checks it does not wait for a start.
    """

    def __init__(self, task: TaskFolder) -> None:
        names = tuple(task.services)
        self.main = one_sandbox(replace(task.place, names=names))
        self._services: list[Sandbox] = []
        try:
            for name, service in task.services.items():
                place = replace(service.place, names=names, beside=self.main)
                self._open_service(f"the service {name}", place, service.healthcheck)
            if task.healthcheck:
                wait_until_healthy(self.main, task.healthcheck, task.path.name)
        except BaseException:
            self.close()
            raise

    def _open_service(self, what: str, place: SandboxSpec, check: Healthcheck | None) -> None:
        service = _make(place)
        self._services.append(service)
        started = Healthcheck(command=":", retries=1)
        try:
            wait_until_healthy(service, check or started, "it")
        except EnvironmentFailure as e:
            output = ""
            with suppress(EnvironmentFailure):  # it has not even started
                output = service.run(["sh", "-c", "tail -c 2000 /run/rollq/service"]).output
            raise EnvironmentFailure(
                f"{what} does not begin: {e}; its output ends with:\n{output}"
            ) from e

    def close(self) -> None:
        with ExitStack() as stack:  # all, also where one fails to
            for sandbox in (self.main, *self._services):
                stack.callback(sandbox.close)


def one_sandbox(place: SandboxSpec) -> Sandbox:
    """A sandbox with the folders that tasks expect."""
    return _make(replace(place, folders=FOLDERS))


def _make(place: SandboxSpec) -> Sandbox:
    return make_sandbox(os.environ.get(MAKER) or "containers", place)


def wait_until_healthy(sandbox: Sandbox, check: Healthcheck, what: str) -> None:
    began = time.monotonic()
    failures = 0
    while True:
        is_starting = time.monotonic() - began < check.start_period_s
        result = sandbox.run(["sh", "-c", check.command], seconds=check.timeout_s)
        if result.code == 0:
            return
        failures += not is_starting
        if failures >= check.retries:
            raise EnvironmentFailure(f"{what} is not healthy: {as_told(result)[-2000:]}")
        time.sleep(check.start_interval_s if is_starting else check.interval_s)
